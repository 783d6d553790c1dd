// The rectifier: max(x, 0), element by element, in place. It has no state: its output tells where it was
// open.
#pragma once

#include "ddp/core/tensor.hpp"
#include "nn/context.hpp"

namespace nn {

namespace cpu {
void relu_forward(ddp::TensorView const& y);
void relu_backward(ddp::TensorView const& y, ddp::TensorView const& dy);
}  // namespace cpu
namespace cuda {
void relu_forward(Context const& context, ddp::TensorView const& y);
void relu_backward(Context const& context, ddp::TensorView const& y, ddp::TensorView const& dy);
}  // namespace cuda

/// y = max(y, 0).
inline void relu_forward(Context const& context, ddp::TensorView const& y) {
  context.on_gpu() ? cuda::relu_forward(context, y) : cpu::relu_forward(y);
}
/// dy = 0 where y, the result of relu_forward, is 0.
inline void relu_backward(Context const& context, ddp::TensorView const& y, ddp::TensorView const& dy) {
  context.on_gpu() ? cuda::relu_backward(context, y, dy) : cpu::relu_backward(y, dy);
}

}  // namespace nn
