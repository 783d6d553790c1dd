// A step that is recorded into a graph once, and replayed (R24).
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "device/stream/recorded_graph.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {
namespace {

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
  std::string why = reasons_of(exchange("recordable", why_not_recorded()), group_);
  if (!why.empty()) return why;
  or_fail([&] { lanes_[0].communicator->begin_recording(*lanes_[0].comm_stream); });
  recording_ = true;
  recorded_steps_ = 0;
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
    graph->abandon(compute);
  }
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
  or_fail([&] { lanes_[0].communicator->end_recording(failed.empty() ? graph : nullptr); });
  std::string why = reasons_of(exchange("recorded", failed), group_);
  auto const counts = exchange("operations", std::to_string(graph->operations));
  for (std::size_t r = 1; why.empty() && r < counts.size(); ++r) {
    if (counts[r] != counts[0]) {
      why =
          text("rank ", group_[0], " recorded ", counts[0], " operations, rank ", group_[r], ' ', counts[r]);
    }
  }
  if (!why.empty()) graph->destroy();
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
    lane.communicator->begin_step(steps_, false);
    lane.communicator->replay(graph, *lane.compute_stream);
    lane.comm_stream->wait(*lane.compute_stream);  // the next operation there may be one without a wait
    used_[answering_lane_].was_sent();
    ++steps_;
  });
}

void Reducer::Impl::require_between_steps(std::string_view what) const {
  if (!in_step_ && no_sync_depth_ == 0) return;
  throw Error(ErrorCode::invalid_state, text(what, in_step_ ? " in the middle of a step" : " under no_sync()",
                                             ": call it between synchronised steps"));
}

void Reducer::replay(RecordedGraph& graph) { impl_->turn()->replay(graph); }

}  // namespace ddp
