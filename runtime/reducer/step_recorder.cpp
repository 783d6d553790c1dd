#include "reducer/step_recorder.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

constexpr std::size_t kAhead = 2;  // replays that the host may be ahead of the GPU

void StepRecorder::begin(RecordedStep& into, GradientMarks const& marks) {
  into_ = &into;
  into.marks.assign(marks.used().size(), RecordedStep::Mark::none);
  steps_ = 0;
  before_ = marks;
}

void StepRecorder::mark_micro_step(std::size_t parameter, bool elsewhere) {
  into_->marks[parameter] = elsewhere ? RecordedStep::Mark::elsewhere : RecordedStep::Mark::here;
}

bool StepRecorder::note_update() { return !std::exchange(into_->updates, true); }

void StepRecorder::end_step(GradientMarks const& marks) {
  ++steps_;
  for (std::size_t p = 0; p < into_->marks.size(); ++p) {
    RecordedStep::Mark& mark = into_->marks[p];
    if (marks.marked_in_step(p)) mark = RecordedStep::Mark::here;
    if (mark == RecordedStep::Mark::none && marks.used()[p] != 0) mark = RecordedStep::Mark::before;
  }
}

void StepRecorder::check() const {
  bool const marks = std::ranges::any_of(
      into_->marks, [](RecordedStep::Mark mark) { return mark != RecordedStep::Mark::none; });
  if (steps_ == 1 || (steps_ == 0 && marks)) return;
  throw Error(
      ErrorCode::invalid_state,
      text("expected one synchronize() outside of no_sync() in the step, or gradients under no_sync() "
           "only; found ",
           steps_, steps_ == 0 ? " and no gradients" : " calls"));
}

RecordedStep& StepRecorder::end(GradientMarks& marks) {
  marks = *std::exchange(before_, std::nullopt);
  RecordedStep& step = *std::exchange(into_, nullptr);
  step.sends = steps_ == 1;
  return step;
}

void StepRecorder::wait_for_older_replay(ReducerLane const& lane) {
  constexpr auto kNap = std::chrono::microseconds(20);
  while (replayed_.size() < kAhead) replayed_.emplace_back(lane.device);
  if (replays_ < kAhead) return;
  while (!replayed_[replays_ % kAhead].reached()) {
    lane.communicator->check_health();
    std::this_thread::sleep_for(kNap);
  }
}

void StepRecorder::replayed(ReducerLane const& lane) {
  replayed_[replays_++ % kAhead].record(*lane.compute_stream);
}

}  // namespace ddp
