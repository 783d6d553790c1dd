// What ranks do together with tensors of PyTorch: for metrics, contrastive losses, rollouts.
#pragma once

#include <memory>

#include "ddp/comm/reduce_op.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/parallel/world.hpp"

namespace at {
class Tensor;
}

namespace DDP_EXPORT ddp {
namespace libtorch {

/// Collective operations on PyTorch's tensors: every rank calls the same ones in the same order, with tensors
/// of the same type and number of elements.
///
/// They keep their place among the operations of PyTorch's current stream: what was computed there before is
/// sent, and what is computed there afterwards sees the result. On a GPU the host waits for nothing except in
/// barrier(); on a CPU a call returns when it is done. They run on World::communicator() and World::stream(),
/// so they also keep order with the program's own operations there.
///
/// A tensor is dense and lies on libtorch::device(world); any shape and strides, also none and no elements.
/// Its type is double, float, half, bfloat16, int64, int32 or uint8, or one that is carried but not reduced:
/// int16, int8, bool, complex numbers of the first three. But bool has max ("or") and min ("and"), and
/// complex numbers have sum and average.
///
/// No operation has a gradient: a tensor that requires one is refused where gradients are recorded; pass
/// `tensor.detach()`.
///
/// Wrong arguments throw Error (invalid_argument or unsupported) before anything is sent, as does a call
/// while a CUDA graph is recorded: operations of a step that StepGraph records are its own. A difference
/// between ranks, a lost rank or a deadline that passes is a CommError on every rank; on a GPU that may be
/// thrown by a later call, or by barrier(). One thread at a time.
class Collectives {
 public:
  /// Not collective. Throws Error(unsupported) for a GPU in a process with two NCCL libraries.
  explicit Collectives(World world);
  ~Collectives();
  Collectives(Collectives&& other) noexcept;             ///< The moved-from object may only be destroyed.
  Collectives& operator=(Collectives&& other) noexcept;  ///< As the constructor.

  /// `tensor` becomes the sum over ranks, or what `op` says, with the same bits on every rank.
  void all_reduce(at::Tensor const& tensor, ReduceOp op = ReduceOp::sum());
  /// The ranks' tensors behind one another along the first dimension, in rank order; of scalars a vector.
  [[nodiscard]] at::Tensor all_gather(at::Tensor const& tensor);
  /// `tensor` becomes that of `root`.
  void broadcast(at::Tensor const& tensor, Rank root = Rank{0});
  /// The sum over ranks, or what `op` says, of this rank's part of the first dimension, which must be
  /// divisible by the number of ranks.
  [[nodiscard]] at::Tensor reduce_scatter(at::Tensor const& tensor, ReduceOp op = ReduceOp::sum());
  /// Returns when every rank has called it and has done what its current stream had before.
  void barrier();

 private:
  class DDP_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace libtorch
}  // namespace ddp
