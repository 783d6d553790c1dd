// What a Replicated has in memory of the host, as it was one step ago.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// The host is at most one step ahead of its GPU (StepCommits). If that step is not committed, the host goes
/// back to the values that it had before.
class HostValues {
 public:
  /// Those of `tensors` that the host has.
  explicit HostValues(std::span<TensorView const> tensors) {
    for (TensorView const& tensor : tensors) {
      if (tensor.device.kind == DeviceKind::cpu && tensor.count() != 0) tensors_.push_back(tensor);
    }
  }

  void keep() {
    kept_.clear();
    for (TensorView const& tensor : tensors_) {
      auto const* const bytes = static_cast<std::byte const*>(tensor.data);
      kept_.insert(kept_.end(), bytes, bytes + tensor.bytes());
    }
  }
  /// What was kept, once.
  void take_back() {
    if (kept_.empty()) return;
    std::size_t at = 0;
    for (TensorView const& tensor : tensors_) {
      std::memcpy(tensor.data, kept_.data() + at, tensor.bytes());
      at += tensor.bytes();
    }
    kept_.clear();
  }

 private:
  std::vector<TensorView> tensors_;
  std::vector<std::byte> kept_;
};

}  // namespace ddp
