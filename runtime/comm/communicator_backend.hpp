// A communicator as the runtime sees it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/fingerprint.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/device/recorded_graph.hpp"

namespace ddp {

/// What every communicator is: backends and decorators derive from it.
class CommunicatorBackend : public Communicator {
 public:
  /// A hint for traces: the next operation or group is called `what` (a literal), number `index`; "" removes
  /// the hint. Has no other effect.
  virtual void annotate(char const* /*what*/, std::size_t /*index*/) noexcept {}

  /// From now on sums, products and averages of floating point numbers combine ranks in rank order (R18), as
  /// backends of host memory always do it: see Communicator. Every rank calls it, before the same operation.
  virtual void combine_in_rank_order() {}

  /// The next collective is the first of training step `step`. Ranks compare the step, whether each of them
  /// has a weight in it (`weighted`), and what their programs have done before it, as they compare counts; a
  /// difference is a CommError(mismatch) that says so.
  void begin_step(std::uint64_t step, bool weighted, SinceLastStep since = {}) noexcept {
    next_begins_ = StepMark::of(step, weighted, since);
  }
  /// Whether settle_step() can tell. Otherwise a difference shows only in the operation itself.
  [[nodiscard]] virtual bool sees_calls() const noexcept { return false; }
  /// Returns when every rank has called that operation with the same arguments, or throws the failure. Waits
  /// for the threads of other ranks, never for a device. Returns `since` of all ranks, combined with |; at
  /// once, and nothing, if sees_calls() is false.
  virtual SinceLastStep settle_step() { return {}; }
  /// The ranks are known to have called different operations: begins to find out which, for check_health() to
  /// throw. Any thread.
  virtual void look_for_difference() const {}
  /// A number that is equal on ranks that have called the same collectives so far. 0 where ranks always
  /// compare operations before they run.
  [[nodiscard]] virtual std::uint64_t called() const noexcept { return 0; }

  // Operations can be recorded into a CUDA graph once, and replayed in every step.

  /// Why operations cannot be recorded; empty if they can.
  [[nodiscard]] virtual std::string why_not_recorded() const;
  /// Collective: every rank records. Until end_recording() operations belong to the recording: ranks do not
  /// compare them, and nobody waits for them. The same thread calls end_recording(), at the latest after the
  /// timeout.
  virtual void begin_recording(Stream& stream);
  /// `graph` is freed before this communicator is, because freeing the communicator would wait for it. Null:
  /// nothing is kept.
  virtual void end_recording(std::shared_ptr<RecordedGraph> const& graph);
  /// Collective. Launches the graph when all ranks have called this (where their calls can be seen). A replay
  /// has one deadline and is compared between ranks as one operation.
  void replay(RecordedGraph& graph, Stream& stream);

  /// From now on this process's flight recorder records the operations of this communicator, and of those
  /// split from it, under `name`, which is equal on every rank, and counts them from 1. Called between
  /// operations.
  void record_as(std::string_view name);

  /// Enqueues on `stream` one operation, or all operations of a group.
  virtual void enqueue(std::span<Operation const> operations, Stream& stream) = 0;

 protected:
  CommunicatorBackend(Rank rank, int size, Device device) noexcept;

  /// Implements split().
  [[nodiscard]] virtual std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) = 0;

 private:
  friend class Communicator;
  void submit(Operation operation, Stream& stream);
  void check_view(char const* operation, char const* which, TensorView const& view);
  void record(Operation const& operation) noexcept;
  void log_placement(Operation const& operation) const;

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

[[nodiscard]] inline CommunicatorBackend& backend_of(Communicator& communicator) noexcept {
  return static_cast<CommunicatorBackend&>(communicator);
}

}  // namespace ddp
