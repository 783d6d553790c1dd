// What a program does with a module between two steps, by which ranks notice a backward() of only some.
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

/// Whether parameters have changed, and gradients were cleared, since a step's end: by PyTorch's count of
/// writes. In a loop both happen on every rank, or neither, as where gradients are accumulated.
/// torch::optim::SGD writes past that count, so a CPU's parameters have changed too if the first element of
/// one has other bytes. That is as equal on ranks as the parameters are: where averages are 0, or the
/// learning rate is, it has other bytes on no rank. What a GPU holds is not asked: the host would wait for
/// it.
class ProgramChanges {
 public:
  explicit ProgramChanges(std::vector<ModuleTensor> const& parameters);

  /// In each hook, first: the gradient of parameter `index` was accumulated. Any thread.
  void accumulated(std::size_t index);
  /// In the hooks of a step, before the runtime is told of the gradient: the first one tells it the changes.
  /// In the thread that accumulates the gradients of that parameter's device.
  void tell(std::size_t index, AutogradSupport support);
  /// From now on changes count.
  void step_ended();
  /// Until then nothing is known.
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
