// A step that is recorded into a graph, and its replays (R24).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/device/event.hpp"
#include "ddp/device/recorded_graph.hpp"
#include "reducer/buckets/gradient_marks.hpp"
#include "reducer/lane.hpp"
#include "reducer/statistics/step_times.hpp"

namespace ddp {

/// A step that was recorded, and what its replays need to know of it.
struct RecordedStep {
  /// What the step does with a parameter.
  enum class Mark : std::uint8_t {
    none,
    here,       ///< its gradient becomes ready in the step
    elsewhere,  ///< under no_sync(), in memory of the program's own
    before,     ///< under no_sync() before the step, which sends it
  };

  std::shared_ptr<RecordedGraph> graph;
  bool sends = false;            ///< false: all of it runs under no_sync()
  bool weighted = false;         ///< set_weight() came before it
  bool updates = false;          ///< update_slices() is a part of it
  bool updates_buckets = false;  ///< so is what on_bucket_ready() or on_slice_ready() was given
  std::vector<Mark> marks;       ///< by parameter
  StepTimes::Recorded times;
};

/// What a Reducer keeps while it records, and between replays.
class StepRecorder {
 public:
  /// From now on the program's calls belong to a step that is recorded.
  void begin(RecordedStep& into, GradientMarks const& marks);
  /// Synchronised steps that the recording has by now.
  [[nodiscard]] int steps() const noexcept { return steps_; }
  /// In a recorded micro-step.
  void mark_micro_step(std::size_t parameter, bool elsewhere);
  /// update_slices() is a part of the recorded step. Returns whether it was not yet.
  [[nodiscard]] bool note_update();
  /// A recorded step has ended.
  void end_step(GradientMarks const& marks);
  /// Throws Error(invalid_state) if the recorded step cannot be replayed.
  void check() const;
  /// Ends the recording, and restores the marks of before for the step itself, or for a replay.
  [[nodiscard]] RecordedStep& end(GradientMarks& marks);

  /// Before a replay on the lane's compute stream: keeps the host at most two replays ahead, since after a
  /// failure all must run before the communicator can be freed. Its deadline ends this wait.
  void wait_for_older_replay(ReducerLane const& lane);
  /// Called after a replay is enqueued.
  void replayed(ReducerLane const& lane);

 private:
  RecordedStep* into_ = nullptr;
  int steps_ = 0;                        // in this recording
  std::optional<GradientMarks> before_;  // the recording
  std::vector<Event> replayed_;          // behind the last replays
  std::uint64_t replays_ = 0;
};

}  // namespace ddp
