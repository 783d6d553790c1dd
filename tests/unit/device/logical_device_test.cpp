// D9, D16: virtual CPU devices in a process without a GPU.
#include "ddp/device/logical_device.hpp"

#include <gmock/gmock.h>

#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/physical_device.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// What a process has is settled once: the suite cuts its CPU before its first test.
class VirtualCpus : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    set_logical_devices({.kind = DeviceKind::cpu, .limits = {1_MiB, 2_MiB}});
    set_logical_devices({.kind = DeviceKind::cpu, .limits = {1_MiB, 2_MiB, std::nullopt}});
  }
};

TEST_F(VirtualCpus, AreListedWithTheirLimits) {
  auto const all = list_logical_devices(DeviceKind::cpu);
  ASSERT_EQ(all.size(), 3U) << "the later of two calls counts";
  for (int i = 0; i < 3; ++i) {
    LogicalDevice const& each = all[static_cast<std::size_t>(i)];
    EXPECT_EQ(each.device, cpu(i));
    EXPECT_EQ(each.slice, i);
    EXPECT_EQ(each.visible, std::nullopt);
    EXPECT_EQ(each.name, "CPU");
  }
  EXPECT_EQ(all[0].limit, 1_MiB);
  EXPECT_EQ(all[1].limit, 2_MiB);
  EXPECT_EQ(all[2].limit, std::nullopt);
  EXPECT_EQ(list_physical_devices(DeviceKind::cpu).size(), 1U);
}

TEST_F(VirtualCpus, HaveMemoryStreamsAndGuards) {
  Tensor const from = zeros(Shape{4}, DType::i64, cpu(1));
  Tensor const to = zeros(Shape{4}, DType::i64, cpu(2));
  EXPECT_EQ(from.view().device, cpu(1));
  EXPECT_EQ(describe(to), "i64[4] on cpu:2");
  from.as<std::int64_t>()[3] = 7;
  auto const stream = make_comm_stream(cpu(2));
  EXPECT_EQ(stream->device(), cpu(2));
  copy_elements(to, from, *stream);
  stream->synchronize();
  EXPECT_EQ(to.as<std::int64_t>()[3], 7);
  EXPECT_EQ(make_compute_stream(cpu(1))->device(), cpu(1));
  DeviceGuard const guard(cpu(2));
  set_device(cpu(0));
}

// D6
TEST_F(VirtualCpus, OneThatIsNotThereIsRefusedEverywhereWithWhatIs) {
  std::string const expected =
      "invalid device id 3: there are 3 logical CPU devices (cpu:0, cpu:1, cpu:2); set_logical_devices() and "
      "DDP_VIRTUAL_DEVICES=n make more";
  for (auto const& use : std::vector<std::function<void()>>{
           [] { static_cast<void>(logical_device(cpu(3))); },
           [] { static_cast<void>(zeros(Shape{1}, DType::f32, cpu(3))); },
           [] { static_cast<void>(make_compute_stream(cpu(3))); },
           [] { static_cast<void>(make_comm_stream(cpu(3))); },
           [] { DeviceGuard const guard(cpu(3)); },
           [] { set_device(cpu(3)); },
           [] {
             require_devices(std::vector<Device>{cpu(0), cpu(3)});
           },
       }) {
    auto const error = error_of<Error>(use);
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_EQ(error.what(), expected);
  }
  require_devices(std::vector<Device>{cpu(0), cpu(2)});
}

TEST_F(VirtualCpus, CannotBeCutOnceTheyAreSettled) {
  static_cast<void>(zeros(Shape{1}, DType::f32, cpu(0)));
  auto const error =
      error_of<Error>([] { set_logical_devices({.kind = DeviceKind::cpu, .limits = {1_MiB}}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("set_logical_devices() of cpu 0 comes too late: "));
  EXPECT_EQ(list_logical_devices(DeviceKind::cpu).size(), 3U);
}

}  // namespace
}  // namespace ddp::testing
