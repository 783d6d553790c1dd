#include "ddp/device/device_guard.hpp"
#include "nn/adam.hpp"
#include "nn/cuda_support.hpp"
#include "nn/floating.hpp"

namespace nn::cuda {
namespace {

template <class T>
struct Numbers {
  T rate, scale, beta1, beta2, epsilon;
};

template <class T>
__global__ void update(T* __restrict__ w, T* __restrict__ g, T* __restrict__ m, T* __restrict__ v,
                       std::size_t count, Numbers<T> step) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    T const mean = m[i] + (1 - step.beta1) * (g[i] - m[i]);
    T const square = v[i] + (1 - step.beta2) * (g[i] * g[i] - v[i]);
    m[i] = mean;
    v[i] = square;
    w[i] -= step.rate * mean / (sqrt(square) * step.scale + step.epsilon);
    g[i] = 0;
  }
}

}  // namespace

void adam_step(Context const& context, ddp::TensorView const& value, ddp::TensorView const& gradient,
               ddp::TensorView const& mean, ddp::TensorView const& square, AdamStep const& step) {
  if (value.count() == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(value.dtype, [&](auto type) {
    using T = decltype(type);
    Numbers<T> const numbers{static_cast<T>(step.rate), static_cast<T>(step.scale),
                             static_cast<T>(step.beta1), static_cast<T>(step.beta2),
                             static_cast<T>(step.epsilon)};
    update<T><<<blocks_for(value.count()), kThreads, 0, stream_of(context)>>>(
        elements<T>(value, context), elements<T>(gradient, context), elements<T>(mean, context),
        elements<T>(square, context), value.count(), numbers);
  });
  check_launch("adam_step");
}

}  // namespace nn::cuda
