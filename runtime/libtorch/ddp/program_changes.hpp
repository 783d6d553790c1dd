// What a program does with a module between two steps. By it ranks notice a backward() that only some call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ddp/parallel/autograd_support.hpp"
#include "libtorch/module_tensors.hpp"

namespace ddp::libtorch {

/// Whether parameters have changed, and gradients were cleared, since a step's end, by PyTorch's count of
/// writes to a tensor. In a training loop every rank does both, or (to accumulate gradients) none does.
/// torch::optim::SGD does not count its writes, so on a CPU parameters count as changed too if the first
/// element of one has other bytes. All ranks have equal parameters, so they agree on that. A GPU's memory is
/// not read, since the host would wait.
class ProgramChanges {
 public:
  explicit ProgramChanges(std::vector<ModuleTensor> const& parameters);

  /// First call in each hook: the gradient of parameter `index` was accumulated. Returns false if it was
  /// added to what the last step left. Any thread.
  bool accumulated(std::size_t index);
  /// Whether the gradient that the last step left is still there.
  [[nodiscard]] bool has_left(std::size_t index) const {
    return left_[index].gradient != nullptr && is_there(left_[index], 0);
  }
  /// In the hooks of a step, before the gradient goes to the runtime: the first call passes the changes to
  /// the runtime. In the thread that accumulates the gradients of that parameter's device.
  void tell(std::size_t index, AutogradSupport support);
  /// Counts changes from now on.
  void step_ended();
  /// Until step_ended() nothing is known.
  void forget() noexcept { is_known_ = false; }

 private:
  using Element = std::array<std::byte, 16>;  // the largest: a complex number of two doubles
  struct Left {
    at::Tensor parameter;
    std::int64_t version = 0;
    Element first{};
    at::TensorImpl const* gradient = nullptr;  // null: the step left none
    std::int64_t gradient_version = 0;
  };
  [[nodiscard]] static Element first_of(at::Tensor const& parameter);
  [[nodiscard]] static bool is_there(Left const& left, std::int64_t additions);
  [[nodiscard]] bool has_changed() const;

  std::vector<Left> left_;
  bool is_known_ = false;
  std::atomic<bool> cleared_{false};  // a gradient, as its hook found
  std::mutex mutex_;
  bool is_told_ = false;
};

}  // namespace ddp::libtorch
