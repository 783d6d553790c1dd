// When the parts of a step were reached on this rank's streams (R20).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ddp/device/event.hpp"
#include "ddp/device/recorded_graph.hpp"
#include "ddp/reducer/step_statistics.hpp"
#include "reducer/lane.hpp"
#include "reducer/statistics/rank_times.hpp"

namespace ddp {

/// Puts events onto the streams of a step and reads them some steps later, so that the host never waits.
/// Steps that begin while too many are unread are not measured.
class StepTimes {
 public:
  /// `lanes` must outlive this object; the first one's compute stream is that of forward and backward pass.
  explicit StepTimes(std::vector<ReducerLane> const& lanes) : lanes_(lanes) {}

  /// For a plan with these lanes of its buckets. Between steps; forgets what is unread.
  void make_room(std::span<std::size_t const> bucket_lanes);

  // In this order, each at its place in the work that is enqueued.
  void begin_forward();  ///< need not be called
  void begin_step();
  void bucket_begun(std::size_t bucket);  ///< its gradients are there, and the bucket before it is through
  void bucket_done(std::size_t bucket);   ///< on the communication stream, behind everything
  void begin_wait();                      ///< of the compute stream, at the end of the step
  /// Keeps `counts`, which next() returns together with the times.
  void end_step(StepStatistics counts);

  /// Until end_recording() the calls above are of a step that is recorded into a CUDA graph.
  void begin_recording() { is_recording_ = true; }
  /// What replays need to know of it.
  struct Recorded {
    bool has_forward = false;
    StepStatistics counts;  ///< but for the number of the step
  };
  [[nodiscard]] Recorded end_recording();
  /// In front of a replay, and behind it.
  void begin_replay(RecordedGraph& graph, Recorded const& recorded);
  void end_replay(Recorded const& recorded, std::uint64_t step);

  /// The next step that the streams have ended. Not while anything is captured into a CUDA graph.
  [[nodiscard]] std::optional<StepStatistics> next();

 private:
  static constexpr std::uint64_t kSlots = kMostAhead + 1;
  struct Slot {
    explicit Slot(Device device) : forward(device), first(device), wait(device), end(device), over(device) {}
    Event forward;
    Event first;
    Event wait;
    Event end;
    Event over;                // behind a replay, whose own events do not tell when they are reached
    std::vector<Event> begun;  // by bucket
    std::vector<Event> done;
    bool has_forward = false;
    bool replayed = false;
    bool follows = false;  // the slot before has the step before
    StepStatistics counts;
  };
  [[nodiscard]] Slot& slot(std::uint64_t number) { return slots_[number % kSlots]; }
  [[nodiscard]] Slot make_slot() const;
  // The slot of the step that is enqueued now.
  [[nodiscard]] Slot& now() { return is_recording_ ? *recorded_ : slot(next_); }
  void mark(Event& event, Stream& stream) const {
    is_recording_ ? event.record_in_replays(stream) : event.record(stream);
  }
  // One slot stays as it is: the step after it counts from its end.
  [[nodiscard]] bool is_full() const noexcept { return next_ - oldest_ + 1 >= kSlots; }
  [[nodiscard]] Stream& compute_stream() const { return *lanes_[0].compute_stream; }
  [[nodiscard]] bool reached(Slot const& slot) const;
  [[nodiscard]] double communication(Slot const& slot) const;

  std::vector<ReducerLane> const& lanes_;
  std::vector<std::size_t> bucket_lanes_;
  std::vector<Slot> slots_;
  std::uint64_t oldest_ = 0;
  std::uint64_t next_ = 0;
  std::optional<Slot> recorded_;  // what graphs mark, where nothing else is said
  std::optional<Slot> unread_;    // of replays that are not measured
  bool is_recording_ = false;
  bool measures_ = false;         // the step that runs
  bool measured_before_ = false;  // the step before
};

}  // namespace ddp
