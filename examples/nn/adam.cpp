#include "nn/adam.hpp"

#include <cmath>
#include <span>

#include "ddp/device/stream.hpp"

namespace nn {

Adam::Adam(std::vector<Weight*> weights, Options options) : weights_(std::move(weights)), options_(options) {
  for (Weight const* const weight : weights_) {
    means_.push_back(weight->context().zeros(weight->value().shape, weight->value().dtype));
    squares_.push_back(weight->context().zeros(weight->value().shape, weight->value().dtype));
  }
  if (weights_.empty() || !weights_[0]->context().on_gpu()) return;
  numbers_ = weights_[0]->context().zeros({sizeof(AdamStep)}, ddp::DType::u8);
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

void Adam::prepare(Context const& context) {
  auto const t = static_cast<double>(++steps_);
  step_ = {.rate = options_.learning_rate / (1 - std::pow(options_.beta1, t)),
           .scale = 1 / std::sqrt(1 - std::pow(options_.beta2, t)),
           .beta1 = options_.beta1,
           .beta2 = options_.beta2,
           .epsilon = options_.epsilon};
  if (context.on_gpu()) cuda::write_step(context, numbers_, step_);
}

void Adam::apply(ddp::BucketSlice const& piece, Context const& context) {
  Weight& weight = *weights_[piece.parameter];
  auto const part = [&](ddp::TensorView const& whole) {
    return ddp::slice(whole, piece.parameter_offset, piece.count);
  };
  if (context.on_gpu()) {
    cuda::adam_step(context, part(weight.value()), part(weight.gradient()), part(means_[piece.parameter]),
                    part(squares_[piece.parameter]), numbers_);
  } else {
    cpu::adam_step(part(weight.value()), part(weight.gradient()), part(means_[piece.parameter]),
                   part(squares_[piece.parameter]), step_);
  }
}

void Adam::step() {
  prepare();
  apply();
}

void Adam::prepare() {
  if (!weights_.empty()) prepare(weights_[0]->context());
}

void Adam::apply() {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    apply({.parameter = i, .count = weights_[i]->value().count()}, weights_[i]->context());
  }
}

void Adam::update(ddp::ReducedBucket const& bucket) {
  bool const on_gpu = bucket.stream.device().kind == ddp::DeviceKind::cuda;
  if (bucket.index == 0) prepare(on_gpu ? Context(bucket.stream) : Context());
  for (ddp::BucketSlice const& piece : bucket.slices) {
    if (on_gpu) {
      apply(piece, bucket.stream);
    } else {
      ddp::host_stream(bucket.stream).enqueue([this, piece] { apply(piece, {}); });
    }
  }
}

}  // namespace nn
