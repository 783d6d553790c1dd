// Collective operations of a group of ranks, whatever carries them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/comm/detail/step_mark.hpp"
#include "ddp/comm/reduce_op.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {
class RecordedGraph;  // ddp/device/recorded_graph.hpp
}

namespace DDP_EXPORT ddp {

/// A group of ranks that call the same operations in the same order.
///
/// Every operation is ordered on the stream that it is given: it starts after everything enqueued there
/// before, and the caller may free or change memory only after waiting for that stream. All operations of one
/// communicator must be on one stream at a time: without an order between two streams, ranks would pair
/// different operations. One thread at a time calls a communicator; abort() and check_health() are for any
/// thread. It must outlive its operations on streams.
///
/// How floating point numbers are rounded depends on the backend. All but "nccl" combine ranks in rank order,
/// 16-bit floats in f32; an average is that sum divided by n, the number of ranks; the result is rounded
/// once. NCCL multiplies the elements of an average first, adds in an order that depends on the size, and
/// rounds to the type at every rank on the way: a result may be off by half a unit in the last place for each
/// rank. The factor is 1/n, which is exact for powers of two, and off by at most half a unit in f32 and f64.
/// For f16 and bf16 and an n that is no power of two, elements are multiplied by the power of two below 1/n,
/// and the sum by the rest, in f32. So 16-bit averages have rounding errors only, which cancel out over many
/// elements. Elements of f16 that the factor takes below 2^-14 lose digits.
///
/// Wrong arguments throw Error(invalid_argument) at once, a wrong stream in group() when its body has
/// returned; the communicator stays usable. Failures of ranks come as CommError (mismatch, timeout,
/// peer_lost, aborted) from the stream, on every rank; they name the ranks, and leave the communicator
/// unusable.
class Communicator {
 public:
  /// What ranks can do together.
  enum class OperationKind : std::uint8_t {
    all_reduce,
    reduce,
    reduce_scatter,
    all_gather,
    all_to_all,
    broadcast,
    barrier,
    replay  ///< of operations that were recorded
  };

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
  /// out[n] = part rank() of the reduction of in[size·n]. In place: out = in + rank·n.
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

  /// A hint for traces: the next operation or group is called `what` (a literal), number `index`; "" removes
  /// the hint. Has no other effect.
  virtual void annotate(char const* /*what*/, std::size_t /*index*/) noexcept {}

  /// The next collective is the first of training step `step`. Ranks compare the step, whether each of them
  /// has a weight in it (`weighted`), and what their programs have done before it, as they compare counts; a
  /// difference is a CommError(mismatch) that says so.
  void begin_step(std::uint64_t step, bool weighted, SinceLastStep since = {}) noexcept {
    next_begins_ = StepMark::of(step, weighted, since);
  }
  /// Returns true when every rank has called that operation with the same arguments, or throws the failure.
  /// Waits for the threads of other ranks, never for a device. Returns false at once if this rank cannot see
  /// the others' calls: then a difference shows only in the operation itself.
  [[nodiscard]] virtual bool settle_step() { return false; }

  /// For the runtime: a number that is equal on ranks that have called the same collectives so far. 0 where
  /// ranks always compare operations before they run.
  [[nodiscard]] virtual std::uint64_t called() const noexcept { return 0; }

  // For the runtime, which records operations into a CUDA graph once and replays them in every step.

  /// Why operations cannot be recorded; empty if they can.
  [[nodiscard]] virtual std::string why_not_recorded() const;
  /// Collective: every rank records. Until end_recording() operations belong to the recording: ranks do not
  /// compare them, and nobody waits for them. The same thread calls end_recording(), at the latest after the
  /// timeout.
  void begin_recording(Stream& stream);
  /// `graph` is freed before this communicator is, because freeing the communicator would wait for it. Null:
  /// nothing is kept.
  void end_recording(std::shared_ptr<RecordedGraph> const& graph);
  /// Collective. Launches the graph when all ranks have called this (where their calls can be seen). A replay
  /// has one deadline and is compared between ranks as one operation.
  void replay(RecordedGraph& graph, Stream& stream);

  /// From now on this process's flight recorder records the operations of this communicator, and of those
  /// split from it, under `name`, which is equal on every rank. Called before the first operation.
  void record_as(std::string_view name);

  /// A communicator of `ranks` (of this one, distinct; position = new rank). Collective: every rank of this
  /// one calls it, each with the group that contains it, or with an empty one to take part in none (returns
  /// null). The host waits until this communicator's operations are done, and then for the other ranks, at
  /// most the timeout for either. Other work of the stream does not count, except that on a GPU work enqueued
  /// right after the last operation may. Throws Error(invalid_argument) on every rank for wrong groups,
  /// Error(invalid_state) while operations are captured into a graph, CommError; and, if operations are
  /// enqueued behind work that failed, what the stream failed with.
  [[nodiscard]] std::unique_ptr<Communicator> split(std::span<Rank const> ranks);

  /// Zeroed memory (u8) with which this communicator is fastest. Collective: every rank calls it, with the
  /// same size. The host waits as in split(). The memory may outlive the communicator. Error(out_of_memory)
  /// and Error(invalid_argument) are thrown on every rank and leave the communicator usable. Throws as
  /// split().
  [[nodiscard]] virtual Tensor allocate(Bytes bytes) = 0;

  /// Throws the CommError that made this communicator unusable, if one did. Any thread.
  virtual void check_health() const = 0;
  /// Makes every pending and later operation fail, on every rank, with `reason`. Any thread. Never throws.
  virtual void abort(std::string_view reason) noexcept = 0;

 protected:
  /// For backends and decorators.
  Communicator(Rank rank, int size, Device device) noexcept;

  /// One operation with checked arguments, as backends and decorators see it.
  struct Operation {
    OperationKind kind = OperationKind::barrier;  ///< what is done
    void const* in = nullptr;                     ///< null if the operation reads nothing
    void* out = nullptr;      ///< null if it writes nothing; of a replay the RecordedGraph
    std::size_t count = 0;    ///< n as above
    DType dtype = DType::u8;  ///< of both
    ReduceOp op;              ///< of reductions
    Rank root;                ///< of a reduce or a broadcast
    /// If a decorator passes an operation on in parts: the count n of the whole, which ranks compare and
    /// messages name. 0: not a part.
    std::size_t whole = 0;
    StepMark begins{};  ///< what begin_step() said of it
    /// What ranks compare and messages name.
    [[nodiscard]] std::size_t whole_count() const noexcept { return whole != 0 ? whole : count; }
  };
  /// Enqueues on `stream` one operation, or all operations of a group.
  virtual void enqueue(std::span<Operation const> operations, Stream& stream) = 0;

  virtual void start_recording(Stream& stream);                                ///< begin_recording()
  virtual void finish_recording(std::shared_ptr<RecordedGraph> const& graph);  ///< end_recording()

  /// Implements split().
  [[nodiscard]] virtual std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) = 0;

  /// How a decorator passes on to the communicator that it wraps.
  static void forward(Communicator& inner, std::span<Operation const> operations, Stream& stream) {
    inner.enqueue(operations, stream);
  }

 private:
  void begin_group();
  void end_group();
  void discard_group() noexcept;
  void submit(Operation operation, Stream& stream);
  void check_view(char const* operation, char const* which, TensorView const& view);
  void record(Operation const& operation) noexcept;
  void log_placement(Operation const& operation) const;
  Rank rank_;
  int size_;
  Device device_;
  bool in_group_ = false;
  bool is_recording_ = false;
  std::vector<Operation> group_;
  Stream* group_stream_ = nullptr;  // of group_
  StepMark next_begins_;
  std::string name_;  // in the flight recorder; empty: not there
  std::uint16_t recorded_as_ = 0;
  std::uint64_t collectives_ = 0;  // recorded
  int splits_ = 0;
  bool asks_cuda_;                       // whether CUDA is asked where memory lies
  std::array<void const*, 64> known_{};  // addresses that CUDA was asked about, by their hash
};

/// "all_reduce".
[[nodiscard]] char const* to_string(Communicator::OperationKind kind) noexcept;

}  // namespace ddp
