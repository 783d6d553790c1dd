#include "libtorch/ddp/program_changes.hpp"

#include <algorithm>
#include <cstring>

#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {

ProgramChanges::ProgramChanges(std::vector<ModuleTensor> const& parameters) {
  for (ModuleTensor const& parameter : parameters) left_.push_back({.parameter = parameter.tensor});
}

// The first element's bytes; zeros if it is not in a CPU's memory.
ProgramChanges::Element ProgramChanges::first_of(at::Tensor const& parameter) {
  Element first{};
  std::size_t const size = parameter.itemsize();
  if (!parameter.is_cpu() || parameter.numel() == 0 || !parameter.has_storage() || size > first.size()) {
    return first;
  }
  auto const place = static_cast<std::size_t>(parameter.storage_offset()) * size;
  at::Storage const& memory = parameter.storage();  // programs may free it between two uses
  if (memory.data() == nullptr || memory.nbytes() < place + size) return first;
  std::memcpy(first.data(), static_cast<std::byte const*>(memory.data()) + place, size);
  return first;
}

// Reads elements only if no write was counted. Compares bytes, since NaN does not equal itself, and not
// addresses, since one rank may give a parameter other memory with the same values.
bool ProgramChanges::has_changed() const {
  return std::ranges::any_of(left_,
                             [](Left const& left) { return version_of(left.parameter) != left.version; }) ||
         std::ranges::any_of(left_, [](Left const& left) { return first_of(left.parameter) != left.first; });
}

// Whether the gradient that the step left is still there, and nothing but additions has changed it.
bool ProgramChanges::is_there(Left const& left, std::int64_t additions) {
  at::Tensor const& now = left.parameter.grad();
  return now.unsafeGetTensorImpl() == left.gradient && version_of(now) == left.gradient_version + additions;
}

bool ProgramChanges::accumulated(std::size_t index) {
  Left& left = left_[index];
  if (left.gradient == nullptr) return true;
  if (is_there(left, 1)) {
    ++left.gradient_version;
    return false;
  }
  cleared_.store(true, std::memory_order_relaxed);
  return true;
}

// Gradients of other devices may be accumulated at this moment, in other threads.
void ProgramChanges::tell(std::size_t index, AutogradSupport support) {
  std::lock_guard const lock(mutex_);
  if (is_told_ || !is_known_) return;
  is_told_ = true;
  auto const device = left_[index].parameter.device();
  bool const cleared =
      cleared_.load(std::memory_order_relaxed) || std::ranges::any_of(left_, [&](Left const& left) {
        return left.gradient != nullptr && left.parameter.device() == device && !is_there(left, 0);
      });
  support.since_last_step(has_changed(), cleared);
}

void ProgramChanges::step_ended() {
  for (Left& left : left_) {
    at::Tensor const& gradient = left.parameter.grad();
    left.version = version_of(left.parameter);
    left.first = first_of(left.parameter);
    left.gradient = gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr;
    left.gradient_version = gradient.defined() ? version_of(gradient) : 0;
  }
  cleared_.store(false, std::memory_order_relaxed);
  is_known_ = true;
  is_told_ = false;
}

}  // namespace ddp::libtorch
