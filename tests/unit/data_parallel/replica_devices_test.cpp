// On which devices replicas and outputs may be (P1, P10).
#include "data_parallel/replicas/replica_devices.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "data_parallel/replicas/device_choice.hpp"
#include "ddp/data_parallel/data_parallel.hpp"
#include "ddp/device/logical_device.hpp"
#include "support/devices/test_devices.hpp"
#include "support/errors.hpp"
#include "support/models/toy_modules.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

Device gpu(int index) { return {DeviceKind::cuda, DeviceIndex{index}}; }

TEST(ReplicaDevices, P10ADeviceThatIsMuchSmallerIsNamedWithTheRemedy) {
  struct Case {
    std::vector<DeviceSize> devices;
    std::string expected;  // "" for no warning
  };
  std::vector<Case> const cases{
      {{}, ""},
      {{{gpu(0), 80_GiB, 132}}, ""},
      {{{gpu(0), 80_GiB, 132}, {gpu(1), 80_GiB, 132}}, ""},
      {{{gpu(0), 80_GiB, 132}, {gpu(1), 60_GiB, 99}}, ""},  // 75 % of each: just enough
      {{{gpu(0), 80_GiB, 132}, {gpu(1), 59_GiB, 132}},
       "cuda:1 has less than 75 % of cuda:0's memory (59 GiB of 80 GiB); to exclude it, leave cuda:1 out of "
       "device_ids, or out of CUDA_VISIBLE_DEVICES"},
      {{{gpu(0), 80_GiB, 98}, {gpu(1), 80_GiB, 132}},
       "cuda:0 has less than 75 % of cuda:1's cores (98 of 132)"},
      {{{gpu(0), 80_GiB, 132}, {gpu(1), 24_GiB, 40}, {gpu(2), 40_GiB, 60}},
       "cuda:1 has less than 75 % of cuda:0's memory"},
  };
  for (Case const& each : cases) {
    auto const warning = describe_imbalance(each.devices);
    EXPECT_EQ(warning.has_value(), !each.expected.empty()) << each.expected;
    EXPECT_THAT(warning.value_or(""), HasSubstr(each.expected));
  }
}

// Devices are settled once in a process, so that each case has one of its own.
TEST(ReplicaDevicesDeathTest, P10TheWrapperSaysSoWhenItIsMade) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const wrap = [](Bytes second) {
    set_logical_devices({.kind = DeviceKind::cpu, .limits = {1_GiB, second}});
    DataParallel const parallel(function_module(Device{}, [](auto&, Value const& input) { return input; }),
                                {.device_ids = test_devices(2)});
    static_cast<void>(std::fputs("made\n", stderr));
    std::exit(0);
  };
  EXPECT_EXIT(
      wrap(512_MiB), ::testing::ExitedWithCode(0),
      "cpu:1 has less than 75 % of cpu:0's memory \\(512 MiB of 1 GiB\\); to exclude it, leave cpu:1 out "
      "of device_ids\nmade");
  EXPECT_EXIT(wrap(800_MiB), ::testing::ExitedWithCode(0), "^made");
}

TEST(ReplicaDevices, P1AnOutputDeviceThatReplicasCannotReachIsRefused) {
  std::vector<Device> const cpus{test_device(0), test_device(1)};
  EXPECT_THAT(message_of([&] { check_output_device(gpu(0), cpus); }),
              HasSubstr("output_device is cuda:0, but device_ids are CPUs (cpu:0, cpu:1)"));
  check_output_device(test_device(3), cpus);
  EXPECT_EQ(error_of<Error>([&] { check_output_device(test_device(4), cpus); }).code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace ddp::testing
