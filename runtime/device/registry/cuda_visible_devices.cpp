#include "device/registry/cuda_visible_devices.hpp"

#include <algorithm>
#include <cstdlib>

#include "ddp/core/text.hpp"
#include "device/registry/gpu_id.hpp"

namespace ddp {
namespace {

/// An index as CUDA reads it: by strtol, so blanks and a sign may precede it and anything may follow, and cut
/// to 32 bits. -1 if there is no digit.
int cuda_index(std::string_view token) {
  std::string const text(token);
  char* end = nullptr;
  long const number = std::strtol(text.c_str(), &end, 10);
  return end == text.c_str() ? -1 : static_cast<int>(number);
}

}  // namespace

std::vector<GpuId> read_cuda_visible_devices(std::optional<std::string> const& value,
                                             std::span<PhysicalGpu const> gpus) {
  std::vector<GpuId> uuids;
  std::vector<GpuId> ids;
  for (PhysicalGpu const& gpu : gpus) {
    uuids.push_back(gpu.uuid);
    ids.push_back(gpu.uuid);
    for (MigInstance const& instance : gpu.mig) ids.push_back(instance.uuid);
  }
  if (!value) return uuids;
  bool const by_id = is_device_id(*value);  // the first entry decides how all are read
  std::vector<GpuId> visible;
  for (std::string_view const token : entries_of(*value)) {
    std::optional<GpuId> device;
    if (by_id) {
      auto const found = is_device_id(token) ? devices_named(token, ids) : std::vector<GpuId>{};
      if (found.size() == 1) device = found.front();
    } else {
      int const index = cuda_index(token);
      if (index >= 0 && static_cast<std::size_t>(index) < uuids.size()) {
        device = uuids[static_cast<std::size_t>(index)];
      }
    }
    if (!device) break;
    if (std::find(visible.begin(), visible.end(), *device) != visible.end()) return {};
    visible.push_back(*device);
  }
  return visible;
}

std::vector<GpuId> visible_device_ids(std::optional<std::string> const& value,
                                      std::span<PhysicalGpu const> gpus) {
  std::vector<GpuId> ids;
  for (GpuId const& uuid : read_cuda_visible_devices(value, gpus)) {
    auto const found = find_gpu(gpus, uuid).value();
    if (found.instance != nullptr || !found.gpu->mig_mode) {
      ids.push_back(uuid);
    } else {
      for (MigInstance const& instance : found.gpu->mig) ids.push_back(instance.uuid);
    }
  }
  return ids;
}

bool names_gpus(std::string const& value) { return is_device_id(value) || cuda_index(value) >= 0; }

}  // namespace ddp
