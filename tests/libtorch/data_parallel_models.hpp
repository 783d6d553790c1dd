// Modules that can be cloned, and the devices that DataParallel's suites run on: CPU replicas, and the GPUs
// that are there, several replicas on one if there are few.
#pragma once

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/device/logical_device.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/same_gradients.hpp"
#include "support/errors.hpp"

namespace ddp::testing {

using libtorch::DataParallel;
using libtorch::DataParallelOptions;

class OnEachKind : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceKind::cuda && logical_devices().empty()) GTEST_SKIP() << "no GPU is visible here";
    torch::manual_seed(7);
  }

  [[nodiscard]] static DataParallelOptions replicas(std::size_t count) {
    std::vector<Device> devices;
    for (std::size_t i = 0; i < count; ++i) {
      auto const gpu = static_cast<int>(i % std::max<std::size_t>(1, logical_devices().size()));
      devices.push_back(GetParam() == DeviceKind::cuda ? Device{DeviceKind::cuda, DeviceIndex{gpu}}
                                                       : Device{});
    }
    return {.device_ids = devices};
  }
  [[nodiscard]] static torch::Device place() {
    return GetParam() == DeviceKind::cuda ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
  }
  template <class M, class... Arguments>
  [[nodiscard]] static std::shared_ptr<M> make(Arguments const&... arguments) {
    auto module = std::make_shared<M>(arguments...);
    module->to(place());
    module->to(torch::kDouble);
    return module;
  }
  [[nodiscard]] static torch::Tensor rows(std::int64_t count, std::int64_t columns = 6) {
    return torch::randn({count, columns}, torch::kDouble).to(place());
  }
};

struct KindName {
  std::string operator()(::testing::TestParamInfo<DeviceKind> const& kind) const {
    return to_string(kind.param);
  }
};

template <class M>
std::shared_ptr<M> copy_of(std::shared_ptr<M> const& module) {
  auto copy = std::dynamic_pointer_cast<M>(module->clone());
  auto const from = module->parameters();
  for (std::size_t p = 0; p < from.size(); ++p) copy->parameters()[p].requires_grad_(from[p].requires_grad());
  return copy;
}

inline void expect_near(torch::Tensor const& found, torch::Tensor const& expected) {
  ASSERT_TRUE(found.defined());
  ASSERT_TRUE(expected.defined());
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(torch::allclose(found.cpu(), expected.cpu(), 1e-9, 1e-11)) << found << "\nexpected\n"
                                                                         << expected;
}

inline void expect_same_gradients(torch::nn::Module const& found, torch::nn::Module const& expected) {
  expect_same_gradients(found, expected, [](auto const& one, auto const& other) { expect_near(one, other); });
}

/// A sum, so that parts of a batch add up to the whole.
inline torch::Tensor loss_of(torch::Tensor const& output) { return (output * output).sum(); }

struct TwoLayers : torch::nn::Cloneable<TwoLayers> {
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  TwoLayers() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(torch::Tensor const& x) { return second(torch::relu(first(x))); }
};

}  // namespace ddp::testing
