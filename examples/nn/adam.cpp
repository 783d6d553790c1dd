#include "nn/adam.hpp"

#include <cmath>
#include <utility>

#include "ddp/device/stream.hpp"

namespace nn {

Adam::Adam(std::vector<Weight*> weights, Options options)
    : Adam(std::span<ddp::Slice const>(), weights.empty() ? Context() : weights[0]->context(), options) {
  weights_ = std::move(weights);
  for (Weight const* const weight : weights_) add_state(weight->value(), weight->context());
}

Adam::Adam(std::span<ddp::Slice const> slices, Context const& context, Options options)
    : context_(context), options_(options) {
  for (ddp::Slice const& slice : slices) add_state(slice.values, context_);
  if (context_.on_gpu()) numbers_ = context_.zeros({sizeof(AdamStep)}, ddp::DType::u8);
}

void Adam::add_state(ddp::TensorView const& of, Context const& context) {
  means_.push_back(context.zeros(of.shape, of.dtype));
  squares_.push_back(context.zeros(of.shape, of.dtype));
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

std::vector<ddp::ShardedTensor> Adam::sharded_state(ddp::DistributedDataParallel const& ddp) const {
  std::vector<ddp::ShardedTensor> tensors;
  for (bool const mean : {true, false}) {
    std::vector<ddp::TensorView> by_slice;
    for (ddp::Tensor const& each : mean ? means_ : squares_) by_slice.push_back(each);
    for (auto& each : ddp::sharded_states(ddp, mean ? "mean" : "square", by_slice)) {
      each.name.erase(0, each.name.find('.') + 1);  // "state."
      tensors.push_back(std::move(each));
    }
  }
  return tensors;
}

void Adam::prepare(std::int64_t number, Context const& context) {
  steps_ = number;
  auto const t = static_cast<double>(steps_);
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
  apply(part(weight.value()), part(weight.gradient()), part(means_[piece.parameter]),
        part(squares_[piece.parameter]), context);
}

void Adam::apply(ddp::TensorView const& value, ddp::TensorView const& gradient, ddp::TensorView const& mean,
                 ddp::TensorView const& square, Context const& context) const {
  if (context.on_gpu()) {
    cuda::adam_step(context, value, gradient, mean, square, numbers_, options_.skip);
  } else {
    cpu::adam_step(value, gradient, mean, square, step_);
  }
}

void Adam::step() {
  prepare(steps_ + 1);
  apply();
}

void Adam::prepare(std::int64_t number) { prepare(number, context_); }

void Adam::apply() {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    apply({.parameter = i, .count = weights_[i]->value().count()}, weights_[i]->context());
  }
}

void Adam::update(ddp::ReducedBucket const& bucket) {
  bool const on_gpu = bucket.stream.device().kind == ddp::DeviceKind::cuda;
  if (bucket.index == 0) prepare(steps_ + 1, on_gpu ? Context(bucket.stream) : Context());
  for (ddp::BucketSlice const& piece : bucket.slices) {
    if (on_gpu) {
      apply(piece, bucket.stream);
    } else {
      ddp::host_stream(bucket.stream).enqueue([this, piece] { apply(piece, {}); });
    }
  }
}

void Adam::update(ddp::Slice const& slice, ddp::Stream& stream) {
  auto const apply_to = [this, &slice](Context const& context) {
    apply(slice.values, slice.gradient, means_[slice.index], squares_[slice.index], context);
  };
  if (stream.device().kind == ddp::DeviceKind::cuda) {
    apply_to(stream);
  } else {
    ddp::host_stream(stream).enqueue([apply_to] { apply_to({}); });
  }
}

}  // namespace nn
