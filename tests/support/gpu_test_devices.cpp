// With the main function of tests of one process and several GPUs, real or virtual: DDP_TEST_GPUS in the
// environment says how many there must be.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "ddp/device/logical_device.hpp"
#include "support/test_devices.hpp"

namespace ddp::testing {

DeviceKind test_device_kind() { return DeviceKind::cuda; }
std::size_t test_device_count() { return logical_devices().size(); }

}  // namespace ddp::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  char const* const wanted = std::getenv("DDP_TEST_GPUS");
  std::size_t const needed = wanted == nullptr ? 1 : std::strtoul(wanted, nullptr, 10);
  std::size_t const found = ddp::testing::test_device_count();
  if (found < needed) {
    std::printf("skipped: %zu GPUs are needed, %zu are visible here\n", needed, found);
    return 69;
  }
  return RUN_ALL_TESTS();
}
