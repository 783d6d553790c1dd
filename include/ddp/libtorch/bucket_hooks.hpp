// A bucket of gradients as a tensor of PyTorch, for hooks of a wrapped module.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "ddp/core/export.hpp"
#include "ddp/reducer/bucket_hooks.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch {

/// A bucket that a hook is to reduce, while the hook runs.
class GradientBucket {
 public:
  /// Gradients of this rank, one-dimensional; the result belongs there too. Operations of PyTorch on it keep
  /// their order: on a GPU PyTorch's current stream is the one on which buckets travel.
  [[nodiscard]] at::Tensor const& gradients() const noexcept { return gradients_; }
  /// Averages `tensor` over ranks (or sums or weighs it, as the step demands): any dense one on the same
  /// device, such as a part of gradients() or a copy of another floating point type. On a CPU the call waits.
  void all_reduce(at::Tensor const& tensor) const;
  /// Which parameters it has, its place in the order, the communicator.
  [[nodiscard]] ddp::GradientBucket const& runtime() const noexcept { return bucket_; }

 private:
  friend class DistributedDataParallel;
  GradientBucket(ddp::GradientBucket const& bucket, at::Tensor gradients)
      : bucket_(bucket), gradients_(std::move(gradients)) {}
  ddp::GradientBucket const& bucket_;
  at::Tensor gradients_;
};

}  // namespace libtorch
}  // namespace ddp
