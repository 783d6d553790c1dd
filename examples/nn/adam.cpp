#include "nn/adam.hpp"

#include <cmath>
#include <span>

namespace nn {

Adam::Adam(std::vector<Weight*> weights, Options options) : weights_(std::move(weights)), options_(options) {
  for (Weight const* const weight : weights_) {
    means_.push_back(weight->context().zeros(weight->value().shape, weight->value().dtype));
    squares_.push_back(weight->context().zeros(weight->value().shape, weight->value().dtype));
  }
}

std::vector<ddp::NamedTensor> Adam::state() {
  std::vector<ddp::NamedTensor> tensors;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    tensors.push_back({weights_[i]->name() + ".mean", means_[i]});
    tensors.push_back({weights_[i]->name() + ".square", squares_[i]});
  }
  tensors.push_back({"steps", ddp::view_of(std::span(&steps_, 1))});
  return tensors;
}

void Adam::step() {
  auto const t = static_cast<double>(++steps_);
  AdamStep const step{.rate = options_.learning_rate / (1 - std::pow(options_.beta1, t)),
                      .scale = 1 / std::sqrt(1 - std::pow(options_.beta2, t)),
                      .beta1 = options_.beta1,
                      .beta2 = options_.beta2,
                      .epsilon = options_.epsilon};
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    Weight& weight = *weights_[i];
    if (weight.context().on_gpu()) {
      cuda::adam_step(weight.context(), weight.value(), weight.gradient(), means_[i], squares_[i], step);
    } else {
      cpu::adam_step(weight.value(), weight.gradient(), means_[i], squares_[i], step);
    }
  }
}

}  // namespace nn
