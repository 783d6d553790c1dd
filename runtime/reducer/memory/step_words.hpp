// Small memory for what ranks tell each other in a step.
#pragma once

#include <memory>

#include "ddp/core/tensor.hpp"
#include "ddp/device/memory.hpp"

namespace ddp {

/// Zeros in memory of `device`. On a CPU they count towards no limit of a virtual device.
[[nodiscard]] inline Tensor step_words(Shape const& shape, DType dtype, Device device) {
  if (device.kind == DeviceKind::cuda) return zeros(shape, dtype, device);
  Tensor const memory = Tensor::zeros(shape, dtype);
  return {TensorView{memory.view().data, shape, dtype, device}, std::make_shared<Tensor>(memory)};
}

}  // namespace ddp
