#include "nn/linear.hpp"

#include <cmath>

#include "nn/floating.hpp"

namespace nn {

Linear::Linear(std::string const& name, std::size_t in, std::size_t out, ddp::DType dtype)
    : weight(name + ".weight", {out, in}, dtype), bias(name + ".bias", {out}, dtype) {}

void Linear::initialize(Random const& random) {
  double const bound = std::sqrt(6.0 / static_cast<double>(in()));
  dispatch_floating(weight.value().dtype, [&](auto type) {
    using T = decltype(type);
    auto const values = weight.value().as<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<T>(random.uniform(i, -bound, bound));
    }
    for (T& value : bias.value().as<T>()) value = 0;
  });
}

void Linear::forward(ddp::TensorView const& x, ddp::TensorView const& y) const {
  cpu::linear_forward(x, weight.value(), bias.value(), y);
}

void Linear::backward_weights(ddp::TensorView const& x, ddp::TensorView const& dy) {
  cpu::linear_backward_weights(x, dy, weight.gradient(), bias.gradient());
}

void Linear::backward_input(ddp::TensorView const& dy, ddp::TensorView const& dx) const {
  cpu::linear_backward_input(dy, weight.value(), dx);
}

}  // namespace nn
