// The rectifier: max(x, 0), element by element, in place. It has no state: its output tells where it was
// open.
#pragma once

#include "ddp/core/tensor.hpp"

namespace nn::cpu {

/// y = max(y, 0).
void relu_forward(ddp::TensorView const& y);
/// dy = 0 where y, the result of relu_forward, is 0.
void relu_backward(ddp::TensorView const& y, ddp::TensorView const& dy);

}  // namespace nn::cpu
