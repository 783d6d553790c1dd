#include "libtorch/ddp/gradient_hook.hpp"

#include <torch/csrc/autograd/variable.h>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::libtorch {

namespace autograd = torch::autograd::impl;

void GradientHook::install(at::Tensor const& parameter, std::string const& name, void const* owner,
                           Accumulated accumulated) {
  autograd::materialize_autograd_meta(parameter);
  if (of(parameter) != nullptr) {
    throw Error(
        ErrorCode::invalid_state,
        text("parameter \"", name,
             "\" belongs to a DistributedDataParallel that still lives: destroy it before the module is "
             "wrapped again"));
  }
  auto& place = autograd::post_acc_grad_hooks(parameter);
  place = std::make_unique<GradientHook>(owner, std::move(accumulated), std::move(place));
}

void GradientHook::remove(at::Tensor const& parameter, void const* owner) noexcept {
  GradientHook* const hook = of(parameter);
  if (hook == nullptr || hook->owner_ != owner) return;
  auto before = std::move(hook->before_);
  autograd::post_acc_grad_hooks(parameter) = std::move(before);
}

GradientHook* GradientHook::of(at::Tensor const& parameter) noexcept {
  if (autograd::get_autograd_meta(parameter) == nullptr) return nullptr;
  return dynamic_cast<GradientHook*>(autograd::post_acc_grad_hooks(parameter).get());
}

void GradientHook::operator()(at::Tensor const& parameter) {
  if (before_) (*before_)(parameter);
  accumulated_(parameter);
}

}  // namespace ddp::libtorch
