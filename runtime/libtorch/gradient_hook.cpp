#include "libtorch/gradient_hook.hpp"

#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::libtorch {

namespace autograd = torch::autograd::impl;

GradientHook::GradientHook(std::size_t index, std::shared_ptr<GradientListener> listener,
                           std::unique_ptr<torch::autograd::PostAccumulateGradHook> before)
    : index_(index), listener_(std::move(listener)), before_(std::move(before)) {}

void GradientHook::install(at::Tensor const& parameter, std::string const& name, std::size_t index,
                           std::shared_ptr<GradientListener> listener) {
  autograd::materialize_autograd_meta(parameter);
  auto& place = autograd::post_acc_grad_hooks(parameter);
  if (dynamic_cast<GradientHook const*>(place.get()) != nullptr) {
    throw Error(
        ErrorCode::invalid_state,
        text("parameter \"", name,
             "\" belongs to a DistributedDataParallel that still lives: destroy it before the module is "
             "wrapped again"));
  }
  // No make_unique: the constructor is private.
  std::unique_ptr<GradientHook> hook(new GradientHook(index, std::move(listener), std::move(place)));
  place = std::move(hook);
}

void GradientHook::remove(at::Tensor const& parameter, GradientListener const& listener) noexcept {
  if (autograd::get_autograd_meta(parameter) == nullptr) return;
  auto& place = autograd::post_acc_grad_hooks(parameter);
  auto* const hook = dynamic_cast<GradientHook*>(place.get());
  if (hook == nullptr || hook->listener_.get() != &listener) return;
  auto before = std::move(hook->before_);
  place = std::move(before);
}

bool GradientHook::is_on(at::Tensor const& parameter) noexcept {
  return autograd::get_autograd_meta(parameter) != nullptr &&
         dynamic_cast<GradientHook const*>(autograd::post_acc_grad_hooks(parameter).get()) != nullptr;
}

void GradientHook::operator()(at::Tensor const& parameter) {
  if (before_) (*before_)(parameter);
  listener_->accumulated(index_, parameter);
}

}  // namespace ddp::libtorch
