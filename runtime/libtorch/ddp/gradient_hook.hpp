// What autograd calls when it has accumulated a parameter's gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace ddp::libtorch {

/// Hooks the tensor itself, which keeps its hook when its gradient accumulator is replaced, as Module::to()
/// does. A tensor has one such hook: an earlier one is called first, and is put back by remove().
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Called with the parameter when a gradient is accumulated in its grad(), in any thread of autograd.
  using Accumulated = std::function<void(at::Tensor const& parameter)>;

  /// Throws Error(invalid_state), with `name` in it, if the parameter has such a hook already.
  static void install(at::Tensor const& parameter, std::string const& name, void const* owner,
                      Accumulated accumulated);
  /// Removes the hook of `owner`, if the parameter still has it.
  static void remove(at::Tensor const& parameter, void const* owner) noexcept;
  /// The parameter's; null where it has none.
  [[nodiscard]] static GradientHook* of(at::Tensor const& parameter) noexcept;

  /// One that calls `before`, which may be null, first.
  GradientHook(void const* owner, Accumulated accumulated,
               std::unique_ptr<torch::autograd::PostAccumulateGradHook> before)
      : owner_(owner), accumulated_(std::move(accumulated)), before_(std::move(before)) {}
  void operator()(at::Tensor const& parameter) override;
  /// DistributedDataParallel::uncommitted(), for optimizers; undefined: no step can break.
  [[nodiscard]] at::Tensor const& uncommitted() const noexcept { return uncommitted_; }
  void set_uncommitted(at::Tensor word) { uncommitted_ = std::move(word); }

 private:
  void const* owner_;
  Accumulated accumulated_;
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> before_;
  at::Tensor uncommitted_;
};

}  // namespace ddp::libtorch
