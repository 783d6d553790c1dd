// A step that is recorded into a graph, and its replays (R24).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddp/device/event.hpp"
#include "reducer/buckets/gradient_marks.hpp"
#include "reducer/lane.hpp"
#include "reducer/recorded_step.hpp"

namespace ddp {

/// What a Reducer keeps while it records, and between replays.
class StepRecorder {
 public:
  /// What the program says from now on is of a step that is recorded.
  void begin(RecordedStep& into, GradientMarks const& marks);
  /// In a recorded micro-step.
  void mark_micro_step(std::size_t parameter, bool elsewhere);
  /// A recorded step has ended.
  void end_step(GradientMarks const& marks);
  /// Throws Error(invalid_state) if that was no step that can be replayed.
  void check() const;
  /// Ends the recording. Afterwards comes the step itself, or a replay, with the marks of before.
  [[nodiscard]] RecordedStep& end(GradientMarks& marks);

  /// In front of a replay on the lane's compute stream: the host is at most two replays ahead. After a
  /// failure all that are enqueued must run before the communicator can end; its deadline ends this wait.
  void wait_for_older_replay(ReducerLane const& lane);
  /// Behind it.
  void replayed(ReducerLane const& lane);

 private:
  RecordedStep* into_ = nullptr;
  int steps_ = 0;                        // in this recording
  std::optional<GradientMarks> before_;  // the recording
  std::vector<Event> replayed_;          // behind the last replays
  std::uint64_t replays_ = 0;
};

}  // namespace ddp
