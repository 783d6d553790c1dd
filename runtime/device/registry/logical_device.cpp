#include "ddp/device/logical_device.hpp"

#include <algorithm>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/device_placement.hpp"
#include "ddp/device/queries.hpp"
#include "device/cuda/backend.hpp"
#include "device/info/api_call.hpp"
#include "device/memory/host_memory.hpp"
#include "device/registry/device_registry.hpp"

namespace ddp {
namespace {

// The device that this thread chose last: CUDA knows the GPU, not which slice of it.
thread_local std::optional<Device> chosen;

}  // namespace

bool is_built_with_cuda() noexcept { return cuda::is_built(); }

std::span<LogicalDevice const> list_logical_devices(DeviceKind kind) {
  ApiCall const call("list_logical_devices()");
  return DeviceRegistry::of_process().logical(kind);
}

std::span<LogicalDevice const> logical_devices() {
  ApiCall const call("logical_devices()");
  return DeviceRegistry::of_process().logical(DeviceKind::cuda);
}

LogicalDevice const& logical_device(Device device) {
  ApiCall const call("logical_device()");
  return DeviceRegistry::of_process().at(device);
}

void require_devices(std::span<Device const> devices) {
  ApiCall const call("require_devices()");
  DeviceRegistry::of_process().require(devices);
}

MemoryInfo memory_info(Device device) {
  ApiCall const call("memory_info()");
  LogicalDevice const& there = logical_device(device);
  if (device.kind == DeviceKind::cpu) return host_memory();
  DeviceGuard const guard(there.device);
  return cuda::memory_info(*there.visible);
}

Device current_device() {
  ApiCall const call("current_device()");
  if (chosen && chosen->kind == DeviceKind::cpu) return *chosen;
  auto const gpus = logical_devices();
  if (gpus.empty()) return Device{};
  int const current = cuda::current_device();
  if (chosen && logical_device(*chosen).visible == current) return *chosen;
  auto const first = std::ranges::find(gpus, current, &LogicalDevice::visible);
  return first == gpus.end() ? gpus.front().device : first->device;
}

void set_device(Device device) {
  ApiCall const call("set_device()");
  LogicalDevice const& there = logical_device(place_device(device));
  if (there.visible) cuda::set_current_device(*there.visible);
  chosen = there.device;
}

DeviceGuard::DeviceGuard(Device device) {
  ApiCall const call("DeviceGuard");
  LogicalDevice const& there = logical_device(place_device(device));
  if (there.visible) {
    void* const context = cuda::primary_context(*there.visible);
    if (void* const current = cuda::current_context(); current != context) {
      cuda::set_current_context(context);
      before_ = current;
    }
  }
  chosen_before_ = std::exchange(chosen, there.device);
}

DeviceGuard::~DeviceGuard() {
  chosen = chosen_before_;
  if (!before_) return;
  try {
    cuda::set_current_context(*before_);
  } catch (Error const&) {  // the context is lost: the next call for that device fails and says so
  }
}

}  // namespace ddp
