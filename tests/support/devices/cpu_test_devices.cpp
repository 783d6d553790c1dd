#include "support/devices/test_devices.hpp"
#include "support/devices/virtual_cpus.hpp"

namespace ddp::testing {

constexpr std::size_t kCpus = 4;
auto* const kCut = VirtualCpus::before_all_tests(kCpus);

DeviceKind test_device_kind() { return DeviceKind::cpu; }
std::size_t test_device_count() { return kCpus; }

}  // namespace ddp::testing
