// For tests that run on CPUs too: on GPUs.
#include "ddp/device/logical_device.hpp"
#include "support/devices/test_devices.hpp"

namespace ddp::testing {

DeviceKind test_device_kind() { return DeviceKind::cuda; }
std::size_t test_device_count() { return logical_devices().size(); }

}  // namespace ddp::testing
