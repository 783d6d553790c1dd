#include "nn/linear.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "nn/floating.hpp"

namespace nn {

Linear::Linear(std::string const& name, std::size_t in, std::size_t out, ddp::DType dtype,
               Context const& context)
    : weight(name + ".weight", {out, in}, dtype, context), bias(name + ".bias", {out}, dtype, context) {}

void Linear::initialize(Random const& random) {
  double const bound = std::sqrt(6.0 / static_cast<double>(in()));
  dispatch_floating(weight.value().dtype, [&](auto type) {
    using T = decltype(type);
    std::vector<T> values(weight.value().count());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<T>(random.uniform(i, -bound, bound));
    }
    std::vector<T> zeros(bias.value().count());
    weight.context().upload(ddp::view_of(std::span(values)), weight.value());
    bias.context().upload(ddp::view_of(std::span(zeros)), bias.value());
  });
}

void Linear::forward(ddp::TensorView const& x, ddp::TensorView const& y) const {
  if (weight.context().on_gpu()) {
    cuda::linear_forward(weight.context(), x, weight.value(), bias.value(), y);
  } else {
    cpu::linear_forward(x, weight.value(), bias.value(), y);
  }
}

void Linear::backward_weights(ddp::TensorView const& x, ddp::TensorView const& dy) {
  if (weight.context().on_gpu()) {
    cuda::linear_backward_weights(weight.context(), x, dy, weight.gradient(), bias.gradient());
  } else {
    cpu::linear_backward_weights(x, dy, weight.gradient(), bias.gradient());
  }
}

void Linear::backward_input(ddp::TensorView const& dy, ddp::TensorView const& dx) const {
  if (weight.context().on_gpu()) {
    cuda::linear_backward_input(weight.context(), dy, weight.value(), dx);
  } else {
    cpu::linear_backward_input(dy, weight.value(), dx);
  }
}

}  // namespace nn
