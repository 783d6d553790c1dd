// Operations of a communicator as calls of NCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "comm/nccl/average.hpp"
#include "comm/nccl/communicator.hpp"
#include "comm/nccl/rank_order.hpp"
#include "ddp/core/tensor.hpp"

namespace ddp {

/// Enqueues operations on a stream, with own kernels before or after them where NCCL alone does not suffice.
/// A factor of an all-reduce or reduce-scatter in place, of f32 or f64, costs one small kernel, since NCCL
/// multiplies while it sums; other factors cost one pass over the elements. Memory beside an operation's
/// tensors (for a scaled reduce, a scaled reduce_scatter elsewhere, an all_to_all in place) is allocated and
/// freed in the stream's order.
class NcclCommunicator::Operations {
 public:
  Operations(Device device, Rank rank, int size, ncclComm_t communicator);

  /// From now on (R18).
  void combine_in_rank_order();
  /// Several are one group. Throws for errors of CUDA.
  [[nodiscard]] ncclResult_t launch(std::span<Operation const> operations, CudaStream& stream);

 private:
  // Memory for work that is enqueued on a stream while this object lives.
  class Scratch {
   public:
    Scratch(std::size_t bytes, cudaStream_t stream);
    Scratch(Scratch&& other) noexcept;
    Scratch& operator=(Scratch&&) = delete;
    ~Scratch();
    [[nodiscard]] void* data() const noexcept { return data_; }

   private:
    void* data_ = nullptr;
    cudaStream_t stream_;
  };

  [[nodiscard]] ncclResult_t call(Operation const& operation, CudaStream& stream);
  void finish(Operation const& operation, CudaStream& stream) const;
  [[nodiscard]] ncclResult_t all_to_all(Operation const& operation, CudaStream& stream);
  /// What NCCL sums, and how.
  struct Summed {
    void const* in;
    ncclRedOp_t reduction;
  };
  /// in[count] × the factor. `where` has room for the products, and may be `in`; null: they get memory.
  [[nodiscard]] Summed scaled(Operation const& operation, std::size_t count, void* where, CudaStream& stream);

  /// NCCL's reduction of one dtype that reads its factor when it runs.
  struct ScaledSum {
    ncclRedOp_t reduction = ncclSum;
    void* scalar = nullptr;          ///< on the device
    double const* factor = nullptr;  ///< whose value `scalar` holds in this launch
  };
  [[nodiscard]] ScaledSum& scaled_sum(DType dtype) { return scaled_sums_[dtype == DType::f64 ? 1 : 0]; }

  Rank rank_;
  std::size_t size_;
  ncclComm_t communicator_;
  NcclAverage average_;
  Tensor words_;
  void* barrier_word_;
  std::array<ScaledSum, 2> scaled_sums_;
  std::vector<Scratch> scratch_;  // of this launch
  std::optional<NcclRankOrder> rank_order_;
};

}  // namespace ddp
