// D15: one model on two devices: its first layer on a CPU and the rest on the rank's GPU; without GPUs, on
// two virtual CPUs.
#include <gmock/gmock.h>

#include <set>

#include "ddp/device/logical_device.hpp"
#include "support/ddp_oracle.hpp"
#include "support/errors.hpp"
#include "support/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// Before the main function makes the World, which settles it.
[[maybe_unused]] bool const kCpuIsCut = [] {
  set_logical_devices({.kind = DeviceKind::cpu, .limits = {std::nullopt, std::nullopt}});
  return true;
}();

Device other_device() {
  bool const on_gpu = world().device().kind == DeviceKind::cuda;
  return {DeviceKind::cpu, DeviceIndex{on_gpu ? 0 : 1}};
}

class MixedDevices : public ::testing::TestWithParam<OracleCase> {};

TEST_P(MixedDevices, D15BothHalvesTrainAsOneModelInOneProcess) {
  check_two_devices_against_oracle(world(), other_device(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Processes, MixedDevices, ::testing::ValuesIn(oracle_cases()),
                         [](auto const& parameters) { return parameters.param.name(); });

TEST(MixedDevices, D15EachDeviceHasBucketsOfItsOwnInOneStep) {
  DeviceMlp<float> model(seed_of(world()), world(), other_device());
  DistributedDataParallel ddp(world(), model.parameters());
  model.take_initial_values();
  for (int step = 0; step < 3; ++step) {
    model.backward(std::vector<std::size_t>{1, 2}, 1.0F, [&](std::size_t p) { ddp.gradient_ready(p); });
    ddp.synchronize();
    model.step(0.1F);
  }
  std::multiset<Device> devices;
  for (Bucket const& bucket : ddp.reducer().plan().buckets()) devices.insert(bucket.device);
  EXPECT_EQ(devices.count(other_device()), 1U);
  EXPECT_EQ(devices.count(world().device()), devices.size() - 1);
  EXPECT_EQ(ddp.reducer().plan().arenas().size(), 2U);
  EXPECT_EQ(ddp.reducer().steps(), 3U);
}

// In the first step too, whose arrivals make the last bucket one of the other device.
TEST(MixedDevices, D15R7WhatWasUsedIsToldForBothDevices) {
  DeviceMlp<float> model(seed_of(world()), world(), other_device());
  DistributedDataParallel ddp(world(), model.parameters());
  for (std::size_t const first : {1U, 0U, 1U}) {
    ddp.gradient_ready(first);  // on the other device
    ddp.gradient_ready(5);
    ddp.synchronize();
    for (std::size_t p = 0; p < ddp.parameters().size(); ++p) {
      EXPECT_EQ(ddp.has_gradient(p), p == first || p == 5) << p;
    }
  }
  EXPECT_EQ(ddp.reducer().rebuilds(), 1);
}

TEST(MixedDevices, D15ASubGroupSaysThatItNeedsTheWholeWorld) {
  if (world().size() < 2) GTEST_SKIP() << "one rank has no smaller group";
  auto const part = world().subgroup(std::vector<Rank>{world().rank()});
  ASSERT_TRUE(part);
  DeviceMlp<float> model(0, *part, other_device());
  EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(*part, model.parameters()); }),
              HasSubstr("a model on several devices needs the whole world"));
}

}  // namespace
}  // namespace ddp::testing
