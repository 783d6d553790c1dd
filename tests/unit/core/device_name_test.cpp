// D8
#include "ddp/core/device_name.hpp"

#include <gmock/gmock.h>

#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr Device cpu(int index) { return {DeviceKind::cpu, DeviceIndex{index}}; }
constexpr Device gpu(int index) { return {DeviceKind::cuda, DeviceIndex{index}}; }

TEST(DeviceName, OwnAndTensorFlowsFormsAreRead) {
  struct Case {
    char const* name;
    Device device;
    std::optional<Rank> rank = {};
  };
  for (Case const& each : {Case{"cpu", cpu(0)},
                           {"cpu:0", cpu(0)},
                           {"cpu:12", cpu(12)},
                           {"cuda", gpu(0)},
                           {"cuda:1", gpu(1)},
                           {"/gpu:0", gpu(0)},
                           {"/GPU:0", gpu(0)},
                           {"/cpu:0", cpu(0)},
                           {"/CPU:3", cpu(3)},
                           {"/device:GPU:1", gpu(1)},
                           {"/device:CPU:0", cpu(0)},
                           {"/job:localhost/replica:0/task:3/device:GPU:1", gpu(1), Rank{3}},
                           {"/job:localhost/replica:0/task:0/device:CPU:0", cpu(0), Rank{0}}}) {
    DeviceName const parsed = parse_device_name(each.name);
    EXPECT_EQ(parsed.device, each.device) << each.name;
    EXPECT_EQ(parsed.rank, each.rank) << each.name;
    if (each.rank) continue;
    EXPECT_EQ(parse_device(each.name), each.device) << each.name;
  }
  for (Device const device : {cpu(2), gpu(7)}) EXPECT_EQ(parse_device(to_string(device)), device);
}

TEST(DeviceName, AnythingElseIsAnErrorThatQuotesItAndShowsTheForms) {
  for (char const* name : {"",
                           " ",
                           "cpu:",
                           "cuda:",
                           "cuda:-1",
                           "cuda:+1",
                           "cuda:01",
                           "cuda:1 ",
                           " cuda:1",
                           "cuda:1,2",
                           "cuda:x",
                           "cuda1",
                           "CUDA:1",
                           "Cpu",
                           "gpu",
                           "gpu:0",
                           "GPU:0",
                           "/gpu",
                           "/GPU",
                           "/Gpu:0",
                           "//gpu:0",
                           "/gpu:0/",
                           "/cuda:0",
                           "/device:gpu:1",
                           "/device:GPU",
                           "/device:GPU:",
                           "/device:cuda:1",
                           "device:GPU:1",
                           "cuda:99999999999",
                           "/job:localhost/replica:0/task:3",
                           "/job:localhost/replica:0/task:/device:GPU:1",
                           "/job:localhost/replica:0/task:-1/device:GPU:1",
                           "/job:localhost/replica:1/task:3/device:GPU:1",
                           "/job:localhost/replica:0/task:3/gpu:1",
                           "/job:localhost/replica:0/task:3/device:GPU:1/x",
                           "/job:worker/replica:0/task:3/device:GPU:1",
                           "mps",
                           "xla:0"}) {
    auto const error = error_of<Error>([&] { static_cast<void>(parse_device_name(name)); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << name;
    EXPECT_EQ(
        error.what(),
        '"' + std::string(name) +
            "\" is no device: expected cpu, cpu:0, cuda, cuda:1, /gpu:0, /GPU:0, /cpu:0, /device:GPU:1 or "
            "/job:localhost/replica:0/task:3/device:GPU:1");
  }
  EXPECT_LT(message_of([] { static_cast<void>(parse_device(std::string(100000, 'x'))); }).size(), 300U);
}

TEST(DeviceName, ADeviceOfAnotherProcessIsNoDeviceOfThisOne) {
  EXPECT_THAT(
      message_of([] { static_cast<void>(parse_device("/job:localhost/replica:0/task:3/device:GPU:1")); }),
      HasSubstr("names a device of rank 3, and a device of this process is expected"));
}

}  // namespace
}  // namespace ddp::testing
