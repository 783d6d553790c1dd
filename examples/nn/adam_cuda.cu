#include "ddp/device/device_guard.hpp"
#include "nn/adam.hpp"
#include "nn/cuda_support.hpp"
#include "nn/floating.hpp"

namespace nn::cuda {
namespace {

__global__ void write(AdamStep* numbers, AdamStep step) { *numbers = step; }

template <class T>
__global__ void update(T* __restrict__ w, T* __restrict__ g, T* __restrict__ m, T* __restrict__ v,
                       std::size_t count, AdamStep const* __restrict__ numbers, float const* skip) {
  if (skip != nullptr && *skip != 0) return;
  auto const rate = static_cast<T>(numbers->rate);
  auto const scale = static_cast<T>(numbers->scale);
  auto const beta1 = static_cast<T>(numbers->beta1);
  auto const beta2 = static_cast<T>(numbers->beta2);
  auto const epsilon = static_cast<T>(numbers->epsilon);
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    T const mean = m[i] + (1 - beta1) * (g[i] - m[i]);
    T const square = v[i] + (1 - beta2) * (g[i] * g[i] - v[i]);
    m[i] = mean;
    v[i] = square;
    w[i] -= rate * mean / (sqrt(square) * scale + epsilon);
    g[i] = 0;
  }
}

}  // namespace

void write_step(Context const& context, ddp::TensorView const& numbers, AdamStep const& step) {
  ddp::DeviceGuard const guard(context.device());
  write<<<1, 1, 0, stream_of(context)>>>(static_cast<AdamStep*>(numbers.data), step);
  check_launch("write_step");
}

void adam_step(Context const& context, ddp::TensorView const& value, ddp::TensorView const& gradient,
               ddp::TensorView const& mean, ddp::TensorView const& square, ddp::TensorView const& numbers,
               ddp::TensorView const& skip) {
  if (value.count() == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(value.dtype, [&](auto type) {
    using T = decltype(type);
    update<T><<<blocks_for(value.count()), kThreads, 0, stream_of(context)>>>(
        elements<T>(value, context), elements<T>(gradient, context), elements<T>(mean, context),
        elements<T>(square, context), value.count(), static_cast<AdamStep const*>(numbers.data),
        static_cast<float const*>(skip.data));
  });
  check_launch("adam_step");
}

}  // namespace nn::cuda
