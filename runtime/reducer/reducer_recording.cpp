// A step that is recorded into a graph once, and replayed (R24).
#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "device/stream/recorded_graph.hpp"
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
  if (statistics_) return "ReducerOptions::statistics is set, and replays are not measured yet";
  if (weight_ >= 0) return "set_weight() was called, and a replay would use the recorded weight";
  return {};
}

std::string Reducer::Impl::begin_recording() {
  require_usable();
  require_between_steps("a recording");
  std::string why;
  or_fail([&] {
    meet();
    why = reasons_of(exchange("recordable", why_not_recorded()), group_);
    if (why.empty()) lanes_[0].communicator->begin_recording(*lanes_[0].comm_stream);
  });
  if (!why.empty()) return why;
  recording_ = true;
  recorded_steps_ = 0;
  tracker_before_ = tracker_;
  return {};
}

// Without the lock: gradients may become ready in other threads.
std::string Reducer::record(std::shared_ptr<RecordedGraph> const& graph, std::function<void()> const& step) {
  if (std::string why = impl_->turn()->begin_recording(); !why.empty()) return why;
  Stream& compute = impl_->compute_stream();
  std::string failed;
  try {
    graph->begin(compute);
    step();
    impl_->turn()->require_one_recorded_step();
    graph->end(compute);
  } catch (std::exception const& error) {
    failed = text("recording failed: ", error.what());
  } catch (...) {
    failed = "recording failed: the step threw something that is no std::exception";
  }
  if (!failed.empty()) graph->abandon(compute);
  return impl_->turn()->end_recording(graph, failed);
}

void Reducer::Impl::require_one_recorded_step() const {
  if (in_step_) throw Error(ErrorCode::invalid_state, "the step does not end with synchronize()");
  if (recorded_steps_ == 1) return;
  throw Error(ErrorCode::invalid_state,
              text("expected one synchronize() outside of no_sync() in the step, found ", recorded_steps_));
}

std::string Reducer::Impl::end_recording(std::shared_ptr<RecordedGraph> const& graph,
                                         std::string const& failed) {
  recording_ = false;
  reset_step();
  std::string why;
  or_fail([&] {
    lanes_[0].communicator->end_recording(failed.empty() ? graph : nullptr);
    meet();
    why = reasons_of(exchange("recorded", failed), group_);
    auto const operations =
        exchange("operations", text(graph->operations, " operations, digest ", graph->digest));
    for (std::size_t r = 1; why.empty() && r < operations.size(); ++r) {
      if (operations[r] == operations[0]) continue;
      why = text("ranks recorded different operations: rank ", group_[0], ' ', operations[0], "; rank ",
                 group_[r], ' ', operations[r]);
    }
  });
  if (why.empty()) return {};
  graph->destroy();
  tracker_ = *tracker_before_;  // the step runs again, without a graph
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
  reset_step();
}

void Reducer::Impl::replay(RecordedGraph& graph) {
  require_usable();
  require_between_steps("a replay");
  if (weight_ >= 0) {
    throw Error(ErrorCode::invalid_state,
                "set_weight() before a replay, which uses no weights: run the step without a graph");
  }
  ReducerLane const& lane = lanes_[0];
  or_fail([&] {
    wait_for_older_replay();
    lane.communicator->begin_step(steps_, false);
    lane.communicator->replay(graph, *lane.compute_stream);
    replayed_[replays_++ % kAhead].record(*lane.compute_stream);
    lane.comm_stream->wait(*lane.compute_stream);  // the next operation there may be one without a wait
    used_[answering_lane_].was_sent();
    ++steps_;
    std::fill(summed_elsewhere_.begin(), summed_elsewhere_.end(), std::uint8_t{0});
    tracker_.reset();
  });
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

void Reducer::replay(RecordedGraph& graph) { impl_->turn()->replay(graph); }

}  // namespace ddp
