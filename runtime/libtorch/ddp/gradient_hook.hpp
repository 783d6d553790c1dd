// What autograd calls when it has accumulated a parameter's gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace ddp::libtorch {

/// Gets the calls of the hooks, in any thread of autograd.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// The gradient of parameter `index` is accumulated in parameter.grad().
  virtual void accumulated(std::size_t index, at::Tensor const& parameter) = 0;
};

/// Hooks the tensor itself, which keeps its hook when its gradient accumulator is replaced, as Module::to()
/// does. A tensor has one such hook: an earlier one is called first, and is put back by remove().
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Throws Error(invalid_state), with `name` in it, if the parameter has such a hook already.
  static void install(at::Tensor const& parameter, std::string const& name, std::size_t index,
                      std::shared_ptr<GradientListener> listener);
  /// Removes the hook that calls `listener`, if the parameter still has it.
  static void remove(at::Tensor const& parameter, GradientListener const& listener) noexcept;
  /// The parameter's; null where it has none.
  [[nodiscard]] static GradientHook* of(at::Tensor const& parameter) noexcept;

  /// One that calls `before`, which may be null, first.
  GradientHook(std::size_t index, std::shared_ptr<GradientListener> listener,
               std::unique_ptr<torch::autograd::PostAccumulateGradHook> before)
      : index_(index), listener_(std::move(listener)), before_(std::move(before)) {}
  void operator()(at::Tensor const& parameter) override;

 private:
  std::size_t index_;
  std::shared_ptr<GradientListener> listener_;
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> before_;
};

}  // namespace ddp::libtorch
