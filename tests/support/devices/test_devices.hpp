// The devices that a suite runs on: virtual CPUs, or the GPUs that are there. A test program has one of
// cpu_test_devices.cpp and gpu_test_devices.cpp.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/core/text.hpp"
#include "ddp/data_parallel/value.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp::testing {

[[nodiscard]] DeviceKind test_device_kind();
[[nodiscard]] std::size_t test_device_count();

[[nodiscard]] inline Device test_device(std::size_t index) {
  return {test_device_kind(), DeviceIndex{static_cast<int>(index)}};
}

[[nodiscard]] inline std::vector<Device> test_devices(std::size_t count) {
  std::vector<Device> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(test_device(i));
  return all;
}

/// For the first line of a test: `if (fewer_devices_than(3)) GTEST_SKIP() << "needs 3 devices";`
[[nodiscard]] inline bool fewer_devices_than(std::size_t count) { return test_device_count() < count; }

/// 1, 2, 3, 4 and 8 devices, as far as they are there.
[[nodiscard]] inline std::vector<std::size_t> device_counts() {
  std::vector<std::size_t> counts;
  for (std::size_t const count : {1, 2, 3, 4, 8}) {
    if (count <= test_device_count()) counts.push_back(count);
  }
  return counts;
}

/// Elements on a device, when the host has waited.
template <class T>
[[nodiscard]] Tensor tensor_on(Device device, Shape const& shape, std::vector<T> elements) {
  Tensor const tensor = zeros(shape, dtype_of<T>, device);
  auto const stream = make_compute_stream(device);
  TensorView host = view_of(std::span(elements));
  host.shape = shape;
  copy_elements(tensor, host, *stream);
  stream->synchronize();
  return tensor;
}

/// 0, 1, 2, …
template <class T>
[[nodiscard]] Tensor counting(Device device, Shape const& shape) {
  std::vector<T> elements(shape.count());
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<T>(i);
  return tensor_on<T>(device, shape, elements);
}

/// A copy on the host of what `stream` has written.
template <class T>
[[nodiscard]] std::vector<T> elements_of(TensorView const& tensor, Stream& stream) {
  std::vector<T> elements(tensor.count());
  TensorView flat = tensor;
  flat.shape = Shape{tensor.count()};
  copy_elements(view_of(std::span(elements)), flat, stream);
  stream.synchronize();
  return elements;
}

/// Of what is there already.
template <class T>
[[nodiscard]] std::vector<T> elements_of(TensorView const& tensor) {
  return elements_of<T>(tensor, *make_compute_stream(tensor.device));
}

}  // namespace ddp::testing
