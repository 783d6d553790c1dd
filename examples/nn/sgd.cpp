#include "nn/sgd.hpp"

namespace nn {

Sgd::Sgd(std::vector<Weight*> weights, Options options) : weights_(std::move(weights)), options_(options) {
  for (Weight const* const weight : weights_) {
    velocities_.push_back(weight->context().zeros(weight->value().shape, weight->value().dtype));
  }
}

void Sgd::step() {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    Weight& weight = *weights_[i];
    if (weight.context().on_gpu()) {
      cuda::sgd_step(weight.context(), weight.value(), weight.gradient(), velocities_[i], options_);
    } else {
      cpu::sgd_step(weight.value(), weight.gradient(), velocities_[i], options_);
    }
  }
}

}  // namespace nn
