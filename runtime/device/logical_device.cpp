#include "ddp/device/logical_device.hpp"

#include <cstdlib>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda_backend.hpp"

namespace ddp {
namespace {

constexpr int kMaxSlices = 1024;

int slices_per_gpu() {
  char const* const given = std::getenv("DDP_VIRTUAL_DEVICES");
  if (given == nullptr) return 1;
  char* end = nullptr;
  long const value = std::strtol(given, &end, 10);
  require(end != given && *end == '\0' && value >= 1 && value <= kMaxSlices,
          text("DDP_VIRTUAL_DEVICES=", given,
               ": expected the number of logical devices that each GPU stands for, 1 to ", kMaxSlices));
  return static_cast<int>(value);
}

std::vector<LogicalDevice> list() {
  std::vector<LogicalDevice> all;
  int const slices = slices_per_gpu();
  for (LogicalDevice const& gpu : cuda::visible_devices()) {
    for (int slice = 0; slice < slices; ++slice) {
      LogicalDevice each = gpu;
      each.slice = slice;
      each.device = Device{DeviceKind::cuda, DeviceIndex{static_cast<int>(all.size())}};
      all.push_back(each);
    }
  }
  return all;
}

std::string describe_all(std::span<LogicalDevice const> devices) {
  if (!is_built_with_cuda()) return "this build of ddp has no CUDA";
  char const* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string what = visible == nullptr ? std::string("CUDA_VISIBLE_DEVICES is not set")
                                        : text("CUDA_VISIBLE_DEVICES=", visible);
  what += text(" leaves ", devices.size(), " logical device", devices.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    what += text(i == 0 ? " (" : ", ", devices[i].device, " = ", devices[i].name, " ", devices[i].pci_bus_id,
                 i + 1 == devices.size() ? ")" : "");
  }
  return what;
}

}  // namespace

bool is_built_with_cuda() noexcept { return cuda::is_built(); }

std::span<LogicalDevice const> logical_devices() {
  static std::vector<LogicalDevice> const all = list();
  return all;
}

LogicalDevice const& logical_device(Device device) {
  require(device.kind == DeviceKind::cuda, [&] { return text("expected a GPU, found ", device); });
  auto const all = logical_devices();
  auto const index = static_cast<std::size_t>(device.index.value());
  if (device.index.value() < 0 || index >= all.size()) {
    throw Error(ErrorCode::not_found, text("invalid device id ", device.index, ": ", describe_all(all)));
  }
  return all[index];
}

MemoryInfo memory_info(Device device) { return cuda::memory_info(logical_device(device).visible); }

void set_device(Device device) {
  if (device.kind == DeviceKind::cuda) cuda::set_current_device(logical_device(device).visible);
}

DeviceGuard::DeviceGuard(Device device) {
  if (device.kind != DeviceKind::cuda) return;
  int const wanted = logical_device(device).visible;
  int const current = cuda::current_device();
  if (wanted == current) return;
  cuda::set_current_device(wanted);
  before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (!before_) return;
  try {
    cuda::set_current_device(*before_);
  } catch (Error const&) {  // the context is lost: whatever is done next on that device says so
  }
}

}  // namespace ddp
