#include <cmath>

#include "nn/adam.hpp"
#include "nn/floating.hpp"

namespace nn::cpu {

void adam_step(ddp::TensorView const& value, ddp::TensorView const& gradient, ddp::TensorView const& mean,
               ddp::TensorView const& square, AdamStep const& step) {
  dispatch_floating(value.dtype, [&](auto type) {
    using T = decltype(type);
    T* const __restrict w = value.as<T>().data();
    T* const __restrict g = gradient.as<T>().data();
    T* const __restrict m = mean.as<T>().data();
    T* const __restrict v = square.as<T>().data();
    auto const rate = static_cast<T>(step.rate);
    auto const scale = static_cast<T>(step.scale);
    auto const beta1 = static_cast<T>(step.beta1);
    auto const beta2 = static_cast<T>(step.beta2);
    auto const epsilon = static_cast<T>(step.epsilon);
    std::size_t const count = value.count();
    for (std::size_t i = 0; i < count; ++i) {
      m[i] += (1 - beta1) * (g[i] - m[i]);
      v[i] += (1 - beta2) * (g[i] * g[i] - v[i]);
      w[i] -= rate * m[i] / (std::sqrt(v[i]) * scale + epsilon);
      g[i] = 0;
    }
  });
}

}  // namespace nn::cpu
