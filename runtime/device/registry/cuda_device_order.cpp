#include "device/registry/cuda_device_order.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "core/system/child_question.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "device/registry/gpu_id.hpp"

namespace ddp {
namespace {

/// In the child: writes a line with the UUID of each GPU, in the driver's order.
void tell_order(int fd, char const* library) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  void* const driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return;
  auto const find = [&]<class Function>(char const* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(driver, name));
    return function != nullptr;
  };
  int (*initialise)(unsigned) = nullptr;
  int (*count_devices)(int*) = nullptr;
  int (*get_device)(int*, int) = nullptr;
  int (*get_uuid)(std::array<unsigned char, 16>*, int) = nullptr;
  if (!find("cuInit", initialise) || !find("cuDeviceGetCount", count_devices) ||
      !find("cuDeviceGet", get_device) || !find("cuDeviceGetUuid", get_uuid)) {
    return;
  }
  int count = 0;
  if (initialise(0) != 0 || count_devices(&count) != 0) return;
  std::string lines;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int device = 0;
    std::array<unsigned char, 16> uuid{};
    if (get_device(&device, ordinal) != 0 || get_uuid(&uuid, device) != 0) return;
    lines += gpu_id(uuid).value + "\n";
  }
  [[maybe_unused]] auto const written = ::write(fd, lines.data(), lines.size());
}

}  // namespace

std::vector<GpuId> ask_cuda_order(char const* library, std::chrono::milliseconds timeout) {
  std::vector<GpuId> uuids;
  try {
    ChildQuestion question([library](int fd) { tell_order(fd, library); });
    auto const answer = question.answer(timeout);
    if (answer.late || answer.status != 0) return {};
    Classic<std::istringstream> lines(answer.words);
    for (std::string line; std::getline(lines, line);) uuids.push_back({line});
  } catch (Error const&) {  // no process can be started: nobody can tell
  }
  return uuids;
}

bool may_differ_from_cuda(std::span<PhysicalGpu const> gpus, std::optional<std::string> const& order) {
  if (order == "PCI_BUS_ID") return false;
  return std::ranges::any_of(gpus, [&](PhysicalGpu const& gpu) { return gpu.name != gpus.front().name; });
}

std::vector<GpuId> cuda_order_of(std::span<PhysicalGpu const> gpus, std::optional<std::string> const& order,
                                 char const* library) {
  if (!may_differ_from_cuda(gpus, order)) return {};
  auto uuids = ask_cuda_order(library);
  bool const tells_all = std::ranges::all_of(
      gpus, [&](PhysicalGpu const& gpu) { return std::ranges::find(uuids, gpu.uuid) != uuids.end(); });
  return tells_all ? uuids : std::vector<GpuId>{};
}

std::vector<PhysicalGpu> ordered_by(std::span<GpuId const> uuids, std::vector<PhysicalGpu> gpus) {
  auto const place = [&](PhysicalGpu const& gpu) {
    return std::pair(std::ranges::find(uuids, gpu.uuid) - uuids.begin(), gpu.index.value());
  };
  std::ranges::sort(gpus, {}, place);
  return gpus;
}

std::vector<PhysicalGpu> in_cuda_order(std::vector<PhysicalGpu> gpus,
                                       std::optional<std::string> const& order) {
  auto const uuids = cuda_order_of(gpus, order);
  return ordered_by(uuids, std::move(gpus));
}

}  // namespace ddp
