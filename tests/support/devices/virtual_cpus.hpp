// Several CPU devices in a test's process: cpu:0, cpu:1 and so on (D9).
#pragma once

#include <gtest/gtest.h>

#include <cstddef>

#include "ddp/device/logical_device.hpp"

namespace ddp::testing {

[[nodiscard]] constexpr Device cpu(int index) { return {DeviceKind::cpu, DeviceIndex{index}}; }

/// Cuts the CPU before the first test of a program: a file of tests has, outside of any function,
/// `auto* const kCpus = VirtualCpus::before_all_tests(4);`
class VirtualCpus : public ::testing::Environment {
 public:
  static ::testing::Environment* before_all_tests(std::size_t count) {
    return ::testing::AddGlobalTestEnvironment(new VirtualCpus(count));
  }
  void SetUp() override {
    VirtualDevices cut{.kind = DeviceKind::cpu};
    cut.limits.resize(count_);
    set_logical_devices(cut);
  }

 private:
  explicit VirtualCpus(std::size_t count) : count_(count) {}
  std::size_t count_;
};

}  // namespace ddp::testing
