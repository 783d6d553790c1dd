// D11, on virtual CPU devices.
#include "ddp/device/device_scope.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "ddp/device/memory.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

Device device_of_new_memory() { return zeros(Shape{2}, DType::f32).view().device; }

TEST(DeviceScope, IsTheDeviceOfMemoryThatNamesNone) {
  EXPECT_EQ(device_of_new_memory(), cpu(0));
  {
    DeviceScope const scope(cpu(1));
    EXPECT_EQ(default_device(), cpu(1));
    EXPECT_EQ(device_of_new_memory(), cpu(1));
    EXPECT_EQ(zeros(Shape{2}, DType::f32, cpu(2)).view().device, cpu(2)) << "said is said";
  }
  EXPECT_EQ(device_of_new_memory(), cpu(0));
}

TEST(DeviceScope, NestsAndEndsWithExceptionsToo) {
  DeviceScope const outer("/cpu:1");
  try {
    DeviceScope const inner("/device:CPU:2");
    EXPECT_EQ(device_of_new_memory(), cpu(2));
    DeviceScope const innermost("cpu");
    EXPECT_EQ(device_of_new_memory(), cpu(0));
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(device_of_new_memory(), cpu(1));
}

TEST(DeviceScope, IsOfItsThread) {
  DeviceScope const scope(cpu(1));
  Device elsewhere = cpu(2);
  std::thread([&] { elsewhere = device_of_new_memory(); }).join();
  EXPECT_EQ(elsewhere, cpu(0));
}

TEST(DeviceScope, OfADeviceThatIsNotThereThrowsAndChangesNothing) {
  DeviceScope const scope(cpu(1));
  EXPECT_THAT(message_of([] { DeviceScope const none(cpu(7)); }), HasSubstr("invalid device id 7"));
  EXPECT_THAT(message_of([] { DeviceScope const none("gpu 1"); }), HasSubstr("\"gpu 1\" is no device"));
  EXPECT_EQ(device_of_new_memory(), cpu(1));
}

// D8: task = rank.
TEST(DeviceScope, ATaskMustBeTheOwnRank) {
  std::string const name = "/job:localhost/replica:0/task:3/device:CPU:1";
  {
    DeviceScope const own(name, Rank{3});
    EXPECT_EQ(device_of_new_memory(), cpu(1));
  }
  EXPECT_THAT(message_of([&] { DeviceScope const other(name, Rank{2}); }),
              HasSubstr("is of rank 3, and this is rank 2: a scope is of a device of its own process"));
  EXPECT_THAT(message_of([&] { DeviceScope const other(name); }), HasSubstr("nothing says which this is"));
}

}  // namespace
}  // namespace ddp::testing
