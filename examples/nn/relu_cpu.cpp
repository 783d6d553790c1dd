#include "nn/floating.hpp"
#include "nn/relu.hpp"

namespace nn::cpu {

void relu_forward(ddp::TensorView const& y) {
  dispatch_floating(y.dtype, [&](auto type) {
    using T = decltype(type);
    for (T& value : y.as<T>()) value = value > 0 ? value : T{0};
  });
}

void relu_backward(ddp::TensorView const& y, ddp::TensorView const& dy) {
  dispatch_floating(y.dtype, [&](auto type) {
    using T = decltype(type);
    auto const open = y.as<T>();
    auto const slopes = dy.as<T>();
    for (std::size_t i = 0; i < slopes.size(); ++i) slopes[i] = open[i] > 0 ? slopes[i] : T{0};
  });
}

}  // namespace nn::cpu
