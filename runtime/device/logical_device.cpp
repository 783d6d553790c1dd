#include "ddp/device/logical_device.hpp"

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/device_placement.hpp"
#include "device/api_call.hpp"
#include "device/cuda_backend.hpp"
#include "device/device_table.hpp"

namespace ddp {

bool is_built_with_cuda() noexcept { return cuda::is_built(); }

std::span<LogicalDevice const> list_logical_devices(DeviceKind kind) {
  ApiCall const call("list_logical_devices()");
  return DeviceTable::of_process().logical(kind);
}

std::span<LogicalDevice const> logical_devices() {
  ApiCall const call("logical_devices()");
  return DeviceTable::of_process().logical(DeviceKind::cuda);
}

LogicalDevice const& logical_device(Device device) {
  ApiCall const call("logical_device()");
  return DeviceTable::of_process().at(device);
}

void require_devices(std::span<Device const> devices) {
  ApiCall const call("require_devices()");
  DeviceTable::of_process().require(devices);
}

void set_logical_devices(VirtualDevices const& cut) { DeviceTable::of_process().set_logical(cut); }

MemoryInfo memory_info(Device device) {
  ApiCall const call("memory_info()");
  LogicalDevice const& there = logical_device(device);
  require(device.kind == DeviceKind::cuda,
          [&] { return text("memory_info: expected a GPU, found ", device); });
  return cuda::memory_info(there.visible);
}

void set_device(Device device) {
  ApiCall const call("set_device()");
  LogicalDevice const& there = logical_device(place_device(device));
  if (there.device.kind == DeviceKind::cuda) cuda::set_current_device(there.visible);
}

DeviceGuard::DeviceGuard(Device device) {
  ApiCall const call("DeviceGuard");
  LogicalDevice const& there = logical_device(place_device(device));
  if (there.device.kind != DeviceKind::cuda) return;
  int const wanted = there.visible;
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
