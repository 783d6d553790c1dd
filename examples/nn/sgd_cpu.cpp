#include "nn/floating.hpp"
#include "nn/sgd.hpp"

namespace nn::cpu {

void sgd_step(ddp::TensorView const& value, ddp::TensorView const& gradient, ddp::TensorView const& velocity,
              SgdOptions const& options) {
  dispatch_floating(value.dtype, [&](auto type) {
    using T = decltype(type);
    T* const w = value.as<T>().data();
    T* const g = gradient.as<T>().data();
    T* const v = velocity.as<T>().data();
    auto const rate = static_cast<T>(options.learning_rate);
    auto const momentum = static_cast<T>(options.momentum);
    for (std::size_t i = 0; i < value.count(); ++i) {
      v[i] = momentum * v[i] + g[i];
      w[i] -= rate * v[i];
      g[i] = 0;
    }
  });
}

}  // namespace nn::cpu
