// D12, on virtual CPU devices.
#include "ddp/device/device_placement.hpp"

#include <gmock/gmock.h>

#include "ddp/device/device_guard.hpp"
#include "ddp/device/device_scope.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/errors.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

auto* const kCpus = VirtualCpus::before_all_tests(3);

constexpr Device gpu(int index) { return {DeviceKind::cuda, DeviceIndex{index}}; }

class Placement : public ::testing::Test {
 protected:
  void TearDown() override {
    set_soft_placement(false);
    set_log_device_placement(false);
  }
  template <class Work>
  static std::string stderr_of(Work const& work) {
    ::testing::internal::CaptureStderr();
    work();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Placement, IsStrictUnlessAskedOtherwise) {
  EXPECT_FALSE(soft_placement());
  EXPECT_EQ(error_of<Error>([] { static_cast<void>(place_device(cpu(3))); }).code(), ErrorCode::not_found);
  EXPECT_EQ(place_device(cpu(2)), cpu(2));
}

TEST_F(Placement, SoftTakesTheCpuForADeviceThatIsNotThereAndSaysSoOnce) {
  set_soft_placement(true);
  Device const none = gpu(99);
  std::string const said = stderr_of([&] {
    EXPECT_EQ(zeros(Shape{2}, DType::f32, none).view().device, cpu(0));
    EXPECT_EQ(zeros(Shape{2}, DType::f32, none).view().device, cpu(0));
    EXPECT_EQ(make_compute_stream(none)->device(), cpu(0));
    EXPECT_EQ(make_comm_stream(none)->device(), cpu(0));
    set_device(none);
    DeviceGuard const guard(none);
    DeviceScope const scope(none);
    EXPECT_EQ(default_device(), cpu(0));
  });
  EXPECT_THAT(said,
              StartsWith("[ddp] warning: cuda:99 is not there, and soft placement takes cpu:0 in its place: "
                         "invalid device id 99: "));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(zeros(Shape{2}, DType::f32, cpu(2)).view().device, cpu(2)) << "what is there is taken";
}

TEST_F(Placement, LogNamesBuffersParametersAndCollectives) {
  auto const one_step = [] {
    auto world = std::move(World::in_process(1).front());
    Tensor const weight = zeros(Shape{3, 4}, DType::f32, cpu(0));
    TensorView gradient;
    Parameter parameter;
    parameter.name = "fc1.weight";
    parameter.value = weight;
    parameter.bind_gradient = [&](TensorView const& view) { gradient = view; };
    DistributedDataParallel ddp(world, {parameter});
    ddp.gradient_ready(0);
    ddp.synchronize();
    static_cast<void>(zeros(Shape{5}, DType::u8, cpu(2)));
  };
  EXPECT_EQ(stderr_of(one_step), "") << "off unless asked for";
  set_log_device_placement(true);
  std::string const said = stderr_of(one_step);
  EXPECT_THAT(said, HasSubstr("[ddp] placement: buffer f32[3,4] on cpu:0\n"));
  EXPECT_THAT(said, HasSubstr("[ddp] placement: buffer u8[5] on cpu:2\n"));
  EXPECT_THAT(said, HasSubstr("[ddp] placement: parameter fc1.weight f32[3,4] on cpu:0\n"));
  EXPECT_THAT(said, HasSubstr("[ddp] placement: all_reduce f32["));
  EXPECT_THAT(said, HasSubstr("] on cpu:0 by solo ("));
}

}  // namespace
}  // namespace ddp::testing
