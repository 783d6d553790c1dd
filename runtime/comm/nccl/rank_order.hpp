// Reductions over NCCL that combine ranks in rank order (R18).
#pragma once

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "comm/fingerprint.hpp"
#include "comm/kernels/cuda_kernels.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/cuda_stream.hpp"

namespace ddp {

/// Sums, products and averages of floating point numbers with the bits of the other backends: NCCL only moves
/// elements. Each rank gets its part of the elements from every rank, reduces these in one kernel, and gives
/// the result to the others: as many bytes as an all-reduce sends. What is small goes to every rank at once.
/// Keeps memory on the GPU for what it receives: (n - 1) / n of the largest operation or group.
class NcclRankOrder {
 public:
  using Call = std::function<ncclResult_t(Operation const&)>;

  /// Loads kernels. `device`'s GPU is current.
  NcclRankOrder(Device device, Rank rank, std::size_t ranks, ncclComm_t communicator);

  /// Whether the order of ranks matters to the result.
  [[nodiscard]] static bool matters(Operation const& operation) noexcept;
  /// Enqueues `operations` on `stream`; those to which the order does not matter by `call`, within a group of
  /// NCCL. Throws for errors of CUDA.
  [[nodiscard]] ncclResult_t launch(std::span<Operation const> operations, CudaStream& stream,
                                    Call const& call);

 private:
  // Elements of one operation that each rank reduces a part of, or all.
  struct Piece {
    Operation const* operation = nullptr;
    std::size_t begin = 0;     // element of `in`
    std::size_t count = 0;     // elements that this rank reduces
    bool is_parted = false;    // rank r reduces those from begin + r · count on; otherwise all do the same
    std::size_t pitch = 0;     // bytes from one rank's received elements to the next one's
    std::size_t received = 0;  // byte of memory_ where the other ranks' elements are, and behind them factors
    // Where in `in` the elements are that `rank` reduces.
    [[nodiscard]] std::size_t begin_of(std::size_t rank) const {
      return begin + (is_parted ? rank * count : 0);
    }
  };
  void plan(std::span<Operation const> operations);
  void add(Piece piece);
  void make_room(std::size_t bytes);
  [[nodiscard]] bool receives(Piece const& piece, std::size_t rank) const noexcept;
  [[nodiscard]] cuda::RankElements elements(Piece const& piece) const;
  [[nodiscard]] ncclResult_t exchange(Piece const& piece, CudaStream& stream) const;
  void reduce(Piece const& piece, CudaStream& stream) const;
  [[nodiscard]] ncclResult_t give(Piece const& piece, CudaStream& stream) const;

  Device device_;
  std::size_t rank_;
  std::size_t ranks_;
  ncclComm_t communicator_;
  std::vector<Piece> pieces_;   // of one launch
  std::size_t bytes_ = 0;       // that they receive
  std::vector<Tensor> memory_;  // the last one is used; work on the others may be on its way
};

}  // namespace ddp
