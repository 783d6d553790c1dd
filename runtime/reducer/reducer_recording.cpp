// A step that is recorded into a graph once, and replayed (R24).
#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "reducer/recorded_step.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {
namespace {

constexpr std::size_t kAhead = 2;  // replays that the host may be ahead of the GPU

// What ranks gave as reasons; empty if none did.
std::string reasons_of(std::vector<std::string> const& said, std::vector<Rank> const& group) {
  std::string reasons;
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (!said[r].empty()) reasons += text(reasons.empty() ? "" : "; ", "rank ", group[r], ": ", said[r]);
  }
  return reasons;
}

// Of an error of a library its first line: PyTorch's go on with the functions that were called.
std::string why_failed(std::string_view error) {
  std::string_view const line = error.substr(0, error.find('\n'));
  bool const forbidden = line.find("captur") != std::string_view::npos;
  return text("recording failed: ", line,
              forbidden ? "; a recorded step only enqueues: move what waits for the GPU or allocates with "
                          "cudaMalloc() in front of run()"
                        : "");
}

}  // namespace

// What a replay would leave out, or do with the values of the recorded step.
std::string Reducer::Impl::why_not_recorded() const {
  if (lanes_.size() != 1) return text("its parameters lie on ", lanes_.size(), " devices; expected one");
  ReducerLane const& lane = lanes_[0];
  if (lane.device.kind != DeviceKind::cuda) return "a CPU has no CUDA graphs";
  if (std::string const why = lane.communicator->why_not_recorded(); !why.empty()) return why;
  if (lane.compute_stream->is_capturing()) return "the compute stream is being captured already";
  if (options_.unused == ReducerOptions::Unused::error) {
    return "ReducerOptions::unused is error, for which the host looks at each step; set it to zero";
  }
  if (options_.nonfinite == ReducerOptions::Nonfinite::error) {
    return "ReducerOptions::nonfinite is error, for which the host looks at each step; set it to flag";
  }
  if (options_.uneven != ReducerOptions::Uneven::refuse) {
    return "ReducerOptions::uneven is set: a rank without data would replay a step with data";
  }
  if (options_.verify_every > 0)
    return "ReducerOptions::verify_every is set, for which the host compares weights";
  return {};
}

std::string Reducer::Impl::begin_recording(RecordedStep& into) {
  require_usable();
  require_between_steps("a recording");
  std::string why;
  or_fail([&] {
    meet();
    why = reasons_of(exchange("recordable", why_not_recorded()), group_);
    if (why.empty()) lanes_[0].communicator->begin_recording(*lanes_[0].comm_stream);
  });
  if (!why.empty()) return why;
  recording_ = &into;
  into.marks.assign(parameters_.size(), RecordedStep::Mark::none);
  recorded_steps_ = 0;
  tracker_before_ = tracker_;
  summed_before_ = summed_elsewhere_;
  if (statistics_) statistics_->times().begin_recording();
  return {};
}

// Without the lock: gradients may become ready in other threads.
std::string Reducer::record(RecordedStep& into, std::function<void()> const& step) {
  if (std::string why = impl_->turn()->begin_recording(into); !why.empty()) return why;
  Stream& compute = impl_->compute_stream();
  std::string failed;
  try {
    into.graph->begin(compute);
    step();
    impl_->turn()->check_recorded();
    into.graph->end(compute);
  } catch (std::exception const& error) {
    failed = why_failed(error.what());
  } catch (...) {
    failed = "recording failed: the step threw something that is no std::exception";
  }
  if (!failed.empty()) into.graph->abandon(compute);
  return impl_->turn()->end_recording(failed);
}

void Reducer::Impl::check_recorded() const {
  auto const refuse = [](std::string const& why) { throw Error(ErrorCode::invalid_state, why); };
  if (in_step_) refuse("the step does not end with synchronize()");
  if (no_sync_depth_ > 0) refuse("a guard of no_sync() outlives the step");
  bool const marks = std::ranges::any_of(
      recording_->marks, [](RecordedStep::Mark mark) { return mark != RecordedStep::Mark::none; });
  if (recorded_steps_ == 1 || (recorded_steps_ == 0 && marks)) return;
  refuse(
      text("expected one synchronize() outside of no_sync() in the step, or gradients under no_sync() "
           "only; found ",
           recorded_steps_, recorded_steps_ == 0 ? " and no gradients" : " calls"));
}

std::string Reducer::Impl::end_recording(std::string const& failed) {
  RecordedStep& step = *std::exchange(recording_, nullptr);
  RecordedGraph& graph = *step.graph;
  step.sends = recorded_steps_ == 1;
  step.weighted = step.sends && weight_ >= 0;
  if (statistics_) step.times = statistics_->times().end_recording();
  reset_step();
  std::string why;
  or_fail([&] {
    lanes_[0].communicator->end_recording(failed.empty() ? step.graph : nullptr);
    meet();
    why = reasons_of(exchange("recorded", failed), group_);
    auto const operations =
        exchange("operations", text(graph.operations, " operations, digest ", graph.digest));
    for (std::size_t r = 1; why.empty() && r < operations.size(); ++r) {
      if (operations[r] == operations[0]) continue;
      why = text("ranks recorded different operations: rank ", group_[0], ' ', operations[0], "; rank ",
                 group_[r], ' ', operations[r]);
    }
  });
  if (!why.empty()) graph.destroy();
  summed_elsewhere_ = summed_before_;
  tracker_ = *tracker_before_;  // now comes the step itself, or a replay
  return why;
}

// What a step leaves behind in this object.
void Reducer::Impl::reset_step() noexcept {
  in_step_ = false;
  tracker_.reset();
  sources_.release();
}

void Reducer::Impl::end_recorded_step() {
  ++recorded_steps_;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    RecordedStep::Mark& mark = recording_->marks[p];
    if (tracker_.marks(p) != 0) mark = RecordedStep::Mark::here;
    if (mark == RecordedStep::Mark::none && tracker_.used()[p] != 0) mark = RecordedStep::Mark::before;
  }
  reset_step();
}

void Reducer::Impl::replay(RecordedStep const& step) {
  require_usable();
  require_between_steps("a replay");
  step.sends ? replay_and_send(step) : replay_alone(step);
}

void Reducer::Impl::replay_and_send(RecordedStep const& step) {
  check_replay(step);
  ReducerLane const& lane = lanes_[0];
  or_fail([&] {
    lane.communicator->check_health();  // before the graph is asked, which goes with it
    wait_for_older_replay();
    lane.communicator->begin_step(steps_, step.weighted);
    if (step.weighted) heads_[0]->write(steps_, weight_, *lane.compute_stream);
    if (statistics_) {
      statistics_->times().begin_replay(*step.graph, step.times);
      statistics_->tell(0, *lane.compute_stream);
    }
    lane.communicator->replay(*step.graph, *lane.compute_stream);
    replayed_[replays_++ % kAhead].record(*lane.compute_stream);
    lane.comm_stream->wait(*lane.compute_stream);  // the next operation there may be one without a wait
    used_[answering_lane_].was_sent();
    if (statistics_) {
      statistics_->times().end_replay(step.times, steps_);
      statistics_->keep(0, *lane.compute_stream);
      report_measured();
    }
    ++steps_;
    std::fill(summed_elsewhere_.begin(), summed_elsewhere_.end(), std::uint8_t{0});
    weight_ = -1;
    tracker_.reset();
  });
}

// What is recorded is whether a step has weights, and where it finds the sums of micro-steps before it.
void Reducer::Impl::check_replay(RecordedStep const& step) const {
  if (step.weighted != (weight_ >= 0)) {
    throw Error(ErrorCode::invalid_state,
                step.weighted
                    ? "a replay without set_weight(), of a step that was recorded after one: call it "
                      "before each run()"
                    : "set_weight() before a replay of a step that was recorded without: call "
                      "record_again(), and set_weight() before each run()");
  }
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (step.marks[p] == RecordedStep::Mark::here || step.marks[p] == RecordedStep::Mark::elsewhere) continue;
    bool const expected = step.marks[p] == RecordedStep::Mark::before;
    if (expected == (tracker_.used()[p] != 0)) continue;
    throw Error(
        ErrorCode::invalid_state,
        text(name_of(p), expected ? " was not" : " was",
             " marked ready under no_sync() before a replay, and ", expected ? "it was" : "not",
             " before the recorded step, which does not mark it: run this step without the graph, or call "
             "record_again()"));
  }
}

void Reducer::Impl::replay_alone(RecordedStep const& step) {
  lanes_[0].communicator->check_health();
  step.graph->launch(*lanes_[0].compute_stream);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (step.marks[p] == RecordedStep::Mark::none) continue;
    tracker_.mark_used(p);
    summed_elsewhere_[p] = step.marks[p] == RecordedStep::Mark::elsewhere ? 1 : 0;
  }
}

// After a failure all that are enqueued must run before the communicator
// can end. The communicator's deadline ends this wait.
void Reducer::Impl::wait_for_older_replay() {
  constexpr auto kNap = std::chrono::microseconds(20);
  while (replayed_.size() < kAhead) replayed_.emplace_back(lanes_[0].device);
  if (replays_ < kAhead) return;
  while (!replayed_[replays_ % kAhead].reached()) {
    lanes_[0].communicator->check_health();
    std::this_thread::sleep_for(kNap);
  }
}

void Reducer::Impl::require_between_steps(std::string_view what) const {
  if (!in_step_ && no_sync_depth_ == 0) return;
  throw Error(ErrorCode::invalid_state, text(what, in_step_ ? " in the middle of a step" : " under no_sync()",
                                             ": call it between synchronised steps"));
}

void Reducer::replay(RecordedStep const& step) { impl_->turn()->replay(step); }

}  // namespace ddp
