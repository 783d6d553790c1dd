#include "nn/floating.hpp"
#include "nn/sgd.hpp"

namespace nn {

Sgd::Sgd(std::vector<Weight*> weights, Options options) : weights_(std::move(weights)), options_(options) {
  for (Weight const* const weight : weights_) {
    velocities_.push_back(ddp::Tensor::zeros(weight->value().shape, weight->value().dtype));
  }
}

void Sgd::step() {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    cpu::sgd_step(weights_[i]->value(), weights_[i]->gradient(), velocities_[i], options_);
  }
}

void cpu::sgd_step(ddp::TensorView const& value, ddp::TensorView const& gradient,
                   ddp::TensorView const& velocity, SgdOptions const& options) {
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

}  // namespace nn
