#include "ddp/device/device_guard.hpp"
#include "nn/cuda_support.hpp"
#include "nn/floating.hpp"
#include "nn/sgd.hpp"

namespace nn::cuda {
namespace {

template <class T>
__global__ void update(T* __restrict__ w, T* __restrict__ g, T* __restrict__ v, std::size_t count, T rate,
                       T momentum) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    T const velocity = momentum * v[i] + g[i];
    v[i] = velocity;
    w[i] -= rate * velocity;
    g[i] = 0;
  }
}

}  // namespace

void sgd_step(Context const& context, ddp::TensorView const& value, ddp::TensorView const& gradient,
              ddp::TensorView const& velocity, SgdOptions const& options) {
  if (value.count() == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(value.dtype, [&](auto type) {
    using T = decltype(type);
    update<T><<<blocks_for(value.count()), kThreads, 0, stream_of(context)>>>(
        elements<T>(value, context), elements<T>(gradient, context), elements<T>(velocity, context),
        value.count(), static_cast<T>(options.learning_rate), static_cast<T>(options.momentum));
  });
  check_launch("sgd_step");
}

}  // namespace nn::cuda
