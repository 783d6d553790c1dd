// The oracle of the single-process path: DataParallel on n devices equals one device on the whole batch.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "ddp/data_parallel/data_parallel.hpp"
#include "support/models/tiny_mlp.hpp"
#include "support/models/toy_modules.hpp"

namespace ddp::testing {

[[nodiscard]] inline DataParallelOptions on(std::vector<Device> devices) {
  return {.device_ids = std::move(devices)};
}

/// Samples first to first + count of TinyData.
template <class T>
[[nodiscard]] Tensor inputs(Device device, std::size_t first, std::size_t count) {
  std::vector<T> all;
  for (std::size_t s = first; s < first + count; ++s) {
    for (std::size_t i = 0; i < TinyData<T>::kInputs; ++i) all.push_back(TinyData<T>::input(s, i));
  }
  return tensor_on<T>(device, {count, TinyData<T>::kInputs}, all);
}
template <class T>
[[nodiscard]] Tensor targets(Device device, std::size_t first, std::size_t count) {
  std::vector<T> all;
  for (std::size_t s = first; s < first + count; ++s) {
    for (std::size_t i = 0; i < TinyData<T>::kOutputs; ++i) all.push_back(TinyData<T>::target(s, i));
  }
  return tensor_on<T>(device, {count, TinyData<T>::kOutputs}, all);
}

/// The gradient of half the squared error over `divisor` samples.
template <class T>
[[nodiscard]] Tensor squared_error_gradient(TensorView const& output, TensorView const& target,
                                            std::size_t divisor, Stream& stream) {
  auto gradient = elements_of<T>(output, stream);
  auto const expected = elements_of<T>(target, stream);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = (gradient[i] - expected[i]) / static_cast<T>(divisor);
  return tensor_on<T>(output.device, output.shape, gradient);
}

/// Plain gradient descent on the module's own parameters; leaves gradients zero.
template <class T>
void descend(Module& module, double rate) {
  for (Parameter const& parameter : module.parameters()) {
    auto value = elements_of<T>(parameter.value, module.stream());
    auto const gradient = elements_of<T>(parameter.gradient, module.stream());
    for (std::size_t i = 0; i < value.size(); ++i) value[i] -= static_cast<T>(rate) * gradient[i];
    TensorView to = parameter.value;
    to.shape = Shape{value.size()};
    copy_elements(to, view_of(std::span(value)), module.stream());
    zero_fill(parameter.gradient, module.stream());
    module.stream().synchronize();
  }
}

template <class T>
[[nodiscard]] std::vector<T> all_values(Module& module) {
  std::vector<T> all;
  for (Parameter const& parameter : module.parameters()) {
    auto const each = elements_of<T>(parameter.value, module.stream());
    all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

inline constexpr std::size_t kTrainingSteps = 4;

/// Trains `module` (wrapped or not) on batches of this size, whose inputs lie on `data`, in so many passes a
/// step, all of them before the gradients are used.
template <class T>
std::vector<T> train(Module& module, std::size_t batch, Device data, std::size_t passes = 1) {
  for (std::size_t step = 0; step < kTrainingSteps; ++step) {
    for (std::size_t pass = 0; pass < passes; ++pass) {
      std::size_t const first = (step * passes + pass) * batch;
      Value const output = module.forward(inputs<T>(data, first, batch));
      Device const out = output.view().device;
      Tensor const gradient = squared_error_gradient<T>(output.view(), targets<T>(out, first, batch),
                                                        batch * passes, *make_compute_stream(out));
      static_cast<void>(module.backward(gradient));
    }
    descend<T>(module, 0.2);
  }
  return all_values<T>(module);
}

template <class T>
void expect_near_all(std::vector<T> const& found, std::vector<T> const& expected) {
  double const tolerance = sizeof(T) == 8 ? 1e-12 : 2e-5;
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], tolerance * std::max(1.0, std::abs(double{expected[i]})))
        << "element " << i;
}

}  // namespace ddp::testing
