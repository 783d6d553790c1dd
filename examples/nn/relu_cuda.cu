#include "ddp/device/device_guard.hpp"
#include "nn/cuda_support.hpp"
#include "nn/floating.hpp"
#include "nn/relu.hpp"

namespace nn::cuda {
namespace {

template <class T>
__global__ void rectify(T* y, std::size_t count) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    y[i] = y[i] > 0 ? y[i] : T{0};
  }
}

template <class T>
__global__ void rectify_slopes(T const* y, T* slopes, std::size_t count) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    slopes[i] = y[i] > 0 ? slopes[i] : T{0};
  }
}

}  // namespace

void relu_forward(Context const& context, ddp::TensorView const& y) {
  if (y.count() == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(y.dtype, [&](auto type) {
    using T = decltype(type);
    rectify<<<blocks_for(y.count()), kThreads, 0, stream_of(context)>>>(elements<T>(y, context), y.count());
  });
  check_launch("relu_forward");
}

void relu_backward(Context const& context, ddp::TensorView const& y, ddp::TensorView const& dy) {
  if (dy.count() == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(dy.dtype, [&](auto type) {
    using T = decltype(type);
    rectify_slopes<T><<<blocks_for(dy.count()), kThreads, 0, stream_of(context)>>>(
        elements<T>(y, context), elements<T>(dy, context), dy.count());
  });
  check_launch("relu_backward");
}

}  // namespace nn::cuda
