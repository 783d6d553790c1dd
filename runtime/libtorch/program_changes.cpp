#include "libtorch/program_changes.hpp"

#include <algorithm>

#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {

ProgramChanges::ProgramChanges(std::vector<ModuleTensor> const& parameters) {
  for (ModuleTensor const& parameter : parameters) left_.push_back({.parameter = parameter.tensor});
}

// Whether the gradient that the step left was only added to since.
bool ProgramChanges::is_there(Left const& left, std::int64_t additions) {
  at::Tensor const& now = left.parameter.grad();
  return now.unsafeGetTensorImpl() == left.gradient && version_of(now) == left.gradient_version + additions;
}

void ProgramChanges::accumulated(std::size_t index) {
  Left& left = left_[index];
  if (left.gradient == nullptr) return;
  if (is_there(left, 1)) {
    ++left.gradient_version;
  } else {
    cleared_.store(true, std::memory_order_relaxed);
  }
}

// Gradients of other devices may be accumulated at this moment, in other threads.
void ProgramChanges::tell(std::size_t index, Reducer& reducer) {
  std::lock_guard const lock(mutex_);
  if (is_told_ || !is_known_) return;
  is_told_ = true;
  auto const device = left_[index].parameter.device();
  bool const changed =
      std::ranges::any_of(left_, [](Left const& left) { return version_of(left.parameter) != left.version; });
  bool const cleared =
      cleared_.load(std::memory_order_relaxed) || std::ranges::any_of(left_, [&](Left const& left) {
        return left.gradient != nullptr && left.parameter.device() == device && !is_there(left, 0);
      });
  reducer.since_last_step(changed, cleared);
}

void ProgramChanges::step_ended() {
  for (Left& left : left_) {
    at::Tensor const& gradient = left.parameter.grad();
    left.version = version_of(left.parameter);
    left.gradient = gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr;
    left.gradient_version = gradient.defined() ? version_of(gradient) : 0;
  }
  cleared_.store(false, std::memory_order_relaxed);
  is_known_ = true;
  is_told_ = false;
}

}  // namespace ddp::libtorch
