// Collective operations of a group of ranks, whatever carries them.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "ddp/comm/reduce_op.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace DDP_EXPORT ddp {

/// A group of ranks that call the same operations in the same order.
///
/// Every operation is ordered on the stream that it is given: it starts after everything enqueued there
/// before, and the caller may free or change memory only after waiting for that stream. All operations of one
/// communicator must be on one stream at a time: without an order between two streams, ranks would pair
/// different operations. One thread at a time calls a communicator; abort() and check_health() are for any
/// thread. It must outlive its operations on streams. Over NCCL its end waits for the other ranks of its
/// host, ten seconds at most: let go of several in the same order on every rank.
///
/// How floating point numbers are rounded depends on the backend. All but "nccl" combine ranks in rank order,
/// 16-bit floats in f32; an average is that sum divided by n, the number of ranks; the result is rounded
/// once. NCCL multiplies the elements of an average first, adds in an order that depends on the size, and
/// rounds to the type at every rank on the way: a result may be off by half a unit in the last place for each
/// rank. The factor is 1/n, which is exact for powers of two, and off by at most half a unit in f32 and f64.
/// For f16 and bf16 and an n that is no power of two, elements are multiplied by the power of two below 1/n,
/// and the sum by the rest, in f32. So 16-bit averages have rounding errors only, which cancel out over many
/// elements. Elements of f16 that the factor takes below 2^-14 lose digits. With
/// DistributedDataParallelOptions::deterministic the communicators of gradients are as all others over NCCL
/// too.
///
/// Wrong arguments throw Error(invalid_argument) at once, a wrong stream in group() when its body has
/// returned; the communicator stays usable. Failures of ranks come as CommError (mismatch, timeout,
/// peer_lost, aborted) from the stream, on every rank; they name the ranks, and leave the communicator
/// unusable.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(Communicator const&) = delete;
  Communicator& operator=(Communicator const&) = delete;

  [[nodiscard]] Rank rank() const noexcept { return rank_; }        ///< This rank.
  [[nodiscard]] int size() const noexcept { return size_; }         ///< Ranks of the group.
  [[nodiscard]] Device device() const noexcept { return device_; }  ///< Where its memory lies.
  /// "solo", "shm", "in-process", "mpi", "staged", "nccl".
  [[nodiscard]] virtual std::string_view backend() const noexcept = 0;

  // In the following `n` is an element count; `in` and `out` have the same dtype and lie on device().
  // `in` and `out` may be the same memory where "in place" is said; otherwise they must not overlap.
  // Reductions take what is_reducible() says, and throw Error(invalid_argument) for other dtypes.

  /// out[n] = the reduction over ranks of in[n], bit-equal on every rank. In place: out = in.
  void all_reduce(TensorView const& in, TensorView const& out, ReduceOp op, Stream& stream);
  void all_reduce(TensorView const& in_out, ReduceOp op, Stream& stream);  ///< The same in place.
  /// As all_reduce, but only `root` receives; elsewhere `out` is not touched and may be empty.
  void reduce(TensorView const& in, TensorView const& out, ReduceOp op, Rank root, Stream& stream);
  /// out[n] = part rank() of the reduction of in[size·n]. In place: out = in + rank·n,
  /// and the other parts of `in` become anything.
  void reduce_scatter(TensorView const& in, TensorView const& out, ReduceOp op, Stream& stream);
  /// out[size·n] = every rank's in[n], in rank order. In place: in = out + rank·n.
  void all_gather(TensorView const& in, TensorView const& out, Stream& stream);
  /// out's part r = part rank() of rank r's in; both [size·n]. In place: out = in.
  void all_to_all(TensorView const& in, TensorView const& out, Stream& stream);
  /// in_out[n] = root's.
  void broadcast(TensorView const& in_out, Rank root, Stream& stream);
  /// No rank's stream goes past it before every rank's stream has reached it.
  void barrier(Stream& stream);

  /// The operations that `body` calls start together when it returns, all on the same stream. If it throws,
  /// none starts. Throws Error(invalid_argument) inside another group. If the stream is refused or the
  /// communicator has failed, throws what an operation would throw.
  template <class Body>
  void group(Body const& body) {
    begin_group();
    try {
      body();
    } catch (...) {
      discard_group();
      throw;
    }
    end_group();
  }

  /// A communicator of `ranks` (of this one, distinct; position = new rank). Collective: every rank of this
  /// one calls it, each with the group that contains it, or with an empty one to take part in none (returns
  /// null). The host waits until this communicator's operations are done, and then for the other ranks, at
  /// most the timeout for either. Other work of the stream does not count, except that on a GPU work enqueued
  /// right after the last operation may. Throws Error(invalid_argument) on every rank for wrong groups,
  /// Error(invalid_state) while operations are captured into a graph, CommError; and, if operations are
  /// enqueued behind work that failed, what the stream failed with.
  /// `name`, equal on every rank: what the flight recorder calls it; empty: that of this one, and a number.
  [[nodiscard]] std::unique_ptr<Communicator> split(std::span<Rank const> ranks, std::string_view name = {});

  /// Zeroed memory (u8) with which this communicator is fastest. Collective: every rank calls it, with the
  /// same size. The host waits as in split(). The memory may outlive the communicator. Error(out_of_memory)
  /// and Error(invalid_argument) are thrown on every rank and leave the communicator usable. Throws as
  /// split().
  [[nodiscard]] virtual Tensor allocate(Bytes bytes) = 0;

  /// Throws the CommError that made this communicator unusable, if one did. Any thread.
  virtual void check_health() const = 0;
  /// Makes every pending and later operation fail, on every rank, with `reason`. Any thread. Never throws.
  virtual void abort(std::string_view reason) noexcept = 0;

 private:
  friend class CommunicatorBackend;  // runtime/comm/communicator_backend.hpp: nothing else derives from it
  Communicator(Rank rank, int size, Device device) noexcept : rank_(rank), size_(size), device_(device) {}
  void begin_group();
  void end_group();
  void discard_group() noexcept;

  Rank rank_;
  int size_;
  Device device_;
};

}  // namespace ddp
