// A trainable tensor, with the place where its gradient adds up.
#pragma once

#include <functional>
#include <string>

#include "ddp/core/tensor.hpp"
#include "ddp/reducer/parameter.hpp"
#include "nn/context.hpp"

namespace nn {

/// Called with a parameter's index as soon as its gradient is complete.
using GradientReady = std::function<void(std::size_t parameter)>;

/// The contract of gradients in nn/: a backward pass ADDS into them, and the optimizer's step() leaves them
/// zero. So micro-steps accumulate by themselves, and no loop needs a zero_grad().
class Weight {
 public:
  Weight(std::string name, ddp::Shape const& shape, ddp::DType dtype, Context context = {})
      : name_(std::move(name)), context_(std::move(context)), value_(context_.zeros(shape, dtype)) {}
  // parameter() hands out the address.
  Weight(Weight const&) = delete;
  Weight& operator=(Weight const&) = delete;

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] Context const& context() const noexcept { return context_; }
  [[nodiscard]] ddp::TensorView const& value() const noexcept { return value_.view(); }
  /// Where the gradient is. Until somebody binds it, it is memory of this object's own, made when first
  /// needed.
  [[nodiscard]] ddp::TensorView const& gradient() {
    if (gradient_.data == nullptr) {
      own_gradient_ = context_.zeros(value().shape, value().dtype);
      gradient_ = own_gradient_.view();
    }
    return gradient_;
  }

  /// What DistributedDataParallel is to know of it, for GradientStorage::arena, also with
  /// Sharding::optimizer. The weight must outlive that object. For the other storages, set the result's
  /// `gradient` to gradient().
  [[nodiscard]] ddp::Parameter parameter() {
    return {.name = name_,
            .value = value(),
            .bind_gradient =
                [this](ddp::TensorView const& view) {
                  gradient_ = view;
                  own_gradient_ = {};
                },
            .bind_value = [this](ddp::Tensor const& place) { value_ = context_.guarded(place); }};
  }

 private:
  std::string name_;
  Context context_;
  ddp::Tensor value_;
  ddp::Tensor own_gradient_;
  ddp::TensorView gradient_;
};

}  // namespace nn
