#include "ddp/device/physical_device.hpp"

#include "device/registry/device_registry.hpp"

namespace ddp {

std::vector<PhysicalDevice> list_physical_devices(DeviceKind kind) {
  return DeviceRegistry::of_process().physical(kind);
}

void set_visible_devices(std::span<int const> numbers) { DeviceRegistry::of_process().set_visible(numbers); }

}  // namespace ddp
