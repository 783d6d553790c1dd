// D15: one model on two devices: its first layer on a CPU and the rest on the rank's GPU; without GPUs, on
// two virtual CPUs.
#include <gtest/gtest.h>

#include <set>

#include "parallel/ddp/reducer_access.hpp"
#include "support/devices/other_device.hpp"
#include "support/models/ddp_oracle.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

class MixedDevices : public ::testing::TestWithParam<OracleCase> {};

TEST_P(MixedDevices, D15BothHalvesTrainAsOneModelInOneProcess) {
  check_two_devices_against_oracle(world(), other_device(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Processes, MixedDevices, ::testing::ValuesIn(oracle_cases()),
                         [](auto const& parameters) { return parameters.param.name(); });

TEST(MixedDevices, D15EachDeviceHasBucketsOfItsOwnInOneStep) {
  DeviceMlp<float> model(seed_of(world()), world(), other_device());
  DistributedDataParallel ddp(world(), model.parameters());
  model.take_values();
  for (int step = 0; step < 3; ++step) {
    model.backward(std::vector<std::size_t>{1, 2}, 1.0F, [&](std::size_t p) { ddp.gradient_ready(p); });
    ddp.synchronize();
    model.step(0.1F);
  }
  std::multiset<Device> devices;
  for (Bucket const& bucket : ddp.plan().buckets()) devices.insert(bucket.device);
  EXPECT_EQ(devices.count(other_device()), 1U);
  EXPECT_EQ(devices.count(world().device()), devices.size() - 1);
  EXPECT_EQ(ddp.plan().arenas().size(), 2U);
  EXPECT_EQ(ddp.steps(), 3U);
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
  EXPECT_EQ(reducer_of(ddp).rebuilds(), 1);
}

// In the first step the last bucket becomes one of the other device, and with it what ranks tell each other.
TEST(MixedDevices, D15R20StepsOnBothDevicesAreMeasured) {
  DeviceMlp<float> model(seed_of(world()), world(), other_device());
  std::vector<StepStatistics> seen;
  {
    DistributedDataParallelOptions options;
    options.statistics = true;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    reducer_of(ddp).report_statistics([&](std::vector<StepStatistics> const& steps) {
      seen.insert(seen.end(), steps.begin(), steps.end());
    });
    for (int step = 0; step < 12; ++step) {
      for (std::size_t const p : {1U, 0U, 5U, 4U, 3U, 2U}) ddp.gradient_ready(p);
      ddp.synchronize();
      world().stream().synchronize();
    }
    EXPECT_EQ(reducer_of(ddp).rebuilds(), 1);
  }
  ASSERT_GE(seen.size(), 11U);
  EXPECT_EQ(seen.back().step, 11U);
  for (std::size_t i = 1; i + 5 < seen.size(); ++i) {
    EXPECT_GT(seen[i].communication_ms, 0);
    EXPECT_EQ(seen[i].late_ms.size(), static_cast<std::size_t>(world().size())) << seen[i].step;
  }
}

// Ranks 0 and 1, 2 and 3 and so on.
World pair_of_ranks() {
  int const first = world().rank().value() / 2 * 2;
  std::vector<Rank> ranks{Rank{first}};
  if (first + 1 < world().size()) ranks.emplace_back(first + 1);
  return world().subgroup(ranks).value();
}

TEST_P(MixedDevices, D15R19ASubGroupTrainsItsModelOnBothDevices) {
  check_two_devices_against_oracle(pair_of_ranks(), other_device(), GetParam());
}

TEST(MixedDevices, D15R19ASubGroupTrainsAModelThatLiesWhollyOnTheOtherDevice) {
  World const pair = pair_of_ranks();
  auto const first = static_cast<float>(pair.members().front().value());
  auto const mine = static_cast<float>(world().rank().value());
  std::vector<float> value(4, mine);
  float* gradient = nullptr;
  TensorView elsewhere = view_of(std::span(value));
  elsewhere.device = other_device();
  DistributedDataParallel ddp(
      pair, {{"w", elsewhere, [&](TensorView const& view) { gradient = view.as<float>().data(); }, {}}});
  EXPECT_EQ(value[3], first) << "the values of the group's first rank";
  for (int step = 0; step < 2; ++step) {
    gradient[3] = mine;
    ddp.gradient_ready(0);
    ddp.synchronize();
    EXPECT_EQ(gradient[3], first + (pair.size() == 2 ? 0.5F : 0.0F));
  }
}

}  // namespace
}  // namespace ddp::testing
