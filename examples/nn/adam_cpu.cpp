#include <cmath>

#include "nn/adam.hpp"
#include "nn/floating.hpp"

namespace nn {

Adam::Adam(std::vector<Weight*> weights, Options options) : weights_(std::move(weights)), options_(options) {
  for (Weight const* const weight : weights_) {
    means_.push_back(ddp::Tensor::zeros(weight->value().shape, weight->value().dtype));
    squares_.push_back(ddp::Tensor::zeros(weight->value().shape, weight->value().dtype));
  }
}

void Adam::step() {
  ++steps_;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    cpu::adam_step(weights_[i]->value(), weights_[i]->gradient(), means_[i], squares_[i], options_, steps_);
  }
}

void cpu::adam_step(ddp::TensorView const& value, ddp::TensorView const& gradient,
                    ddp::TensorView const& mean, ddp::TensorView const& square, AdamOptions const& options,
                    std::uint64_t step) {
  auto const t = static_cast<double>(step);
  double const correction1 = 1 - std::pow(options.beta1, t);
  double const correction2 = 1 - std::pow(options.beta2, t);
  dispatch_floating(value.dtype, [&](auto type) {
    using T = decltype(type);
    T* const __restrict w = value.as<T>().data();
    T* const __restrict g = gradient.as<T>().data();
    T* const __restrict m = mean.as<T>().data();
    T* const __restrict v = square.as<T>().data();
    // The corrections are taken out of the loop: rate · m / c1 / (sqrt(v / c2) + ε).
    auto const rate = static_cast<T>(options.learning_rate / correction1);
    auto const scale = static_cast<T>(1 / std::sqrt(correction2));
    auto const beta1 = static_cast<T>(options.beta1);
    auto const beta2 = static_cast<T>(options.beta2);
    auto const epsilon = static_cast<T>(options.epsilon);
    std::size_t const count = value.count();
    for (std::size_t i = 0; i < count; ++i) {
      m[i] += (1 - beta1) * (g[i] - m[i]);
      v[i] += (1 - beta2) * (g[i] * g[i] - v[i]);
      w[i] -= rate * m[i] / (std::sqrt(v[i]) * scale + epsilon);
      g[i] = 0;
    }
  });
}

}  // namespace nn
