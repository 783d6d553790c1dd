// A step that is recorded into a graph once, and replayed (R24).
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "core/record.hpp"
#include "ddp/core/text.hpp"
#include "reducer/call_program.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/reducer.hpp"

namespace ddp {
namespace {

// What ranks gave as reasons; empty if none did.
std::string reasons_of(std::vector<std::string> const& said, ReducerRanks const& ranks) {
  std::string reasons;
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (!said[r].empty()) reasons += text(reasons.empty() ? "" : "; ", "rank ", ranks[r], ": ", said[r]);
  }
  return reasons;
}

// The first line of a library's error: those of PyTorch go on with the functions that were called.
std::string why_failed(std::string_view error) {
  std::string_view const line = error.substr(0, error.find('\n'));
  bool const forbidden = line.find("captur") != std::string_view::npos;
  return text("recording failed: ", line,
              forbidden ? "; a recorded step only enqueues: move what waits for the GPU or allocates with "
                          "cudaMalloc() in front of run()"
                        : "");
}

}  // namespace

// Features that a replay would leave out, or run with the values of the recorded step.
std::string Reducer::why_not_recorded() const {
  if (state_.lanes.size() != 1)
    return text("its parameters lie on ", state_.lanes.size(), " devices; expected one");
  ReducerLane const& lane = state_.lanes[0];
  if (lane.device.kind != DeviceKind::cuda) return "a CPU has no CUDA graphs";
  if (std::string why = lane.communicator->why_not_recorded(); !why.empty()) return why;
  if (lane.compute_stream->is_capturing()) return "the compute stream is being captured already";
  return parts_.why_not_recorded();
}

// Does not hold the lock while the step runs: gradients may become ready in other threads.
std::string Reducer::record(RecordedStep& into, std::function<void()> const& step) {
  if (std::string why = begin_recording(into); !why.empty()) return why;
  Stream& compute = *state_.lanes[0].compute_stream;
  std::string failed;
  try {
    into.graph->begin(compute);
    ProgramCall const counted;  // this object must outlive it
    step();
    check_recorded();
    into.graph->end(compute);
  } catch (std::exception const& error) {
    failed = why_failed(error.what());
  } catch (...) {
    failed = "recording failed: the step threw something that is no std::exception";
  }
  if (!failed.empty()) into.graph->abandon(compute);
  return end_recording(failed);
}

std::string Reducer::begin_recording(RecordedStep& into) {
  Turn const turn(mutex_);
  require_usable();
  require_between_steps("a recording");
  std::string why;
  or_fail([&] {
    meet();
    why = reasons_of(state_.ranks.exchange("recordable", why_not_recorded()), state_.ranks);
    if (why.empty()) state_.lanes[0].communicator->begin_recording(*state_.lanes[0].comm_stream);
  });
  if (!why.empty()) return why;
  state_.step.kind = StepKind::recorded;
  recorder_.begin(into, state_.marks);
  if (parts_.statistics) parts_.statistics->times().begin_recording();
  return {};
}

void Reducer::check_recorded() const {
  Turn const turn(mutex_);
  auto const refuse = [](char const* why) { throw Error(ErrorCode::invalid_state, why); };
  if (state_.step.has_begun()) refuse("the step does not end with synchronize()");
  if (no_sync_depth_ > 0) refuse("a guard of no_sync() outlives the step");
  recorder_.check();
}

std::string Reducer::end_recording(std::string const& failed) {
  Turn const turn(mutex_);
  RecordedStep& step = recorder_.end(state_.marks);
  RecordedGraph& graph = *step.graph;
  step.weighted = step.sends && parts_.weights.given();
  step.updates_buckets = step.sends && updates_.is_used();
  if (parts_.statistics) step.times = parts_.statistics->times().end_recording();
  state_.step.kind = StepKind::own;
  state_.step.state = StepState::idle;
  state_.memory.release_sources();
  if (values_) values_->forget();
  std::string why;
  or_fail([&] {
    state_.lanes[0].communicator->end_recording(failed.empty() ? step.graph : nullptr);
    meet();
    why = reasons_of(state_.ranks.exchange("recorded", failed), state_.ranks);
    auto const operations =
        state_.ranks.exchange("operations", text(graph.operations, " operations, digest ", graph.digest));
    if (std::size_t const r = first_to_differ(operations); why.empty() && r != 0) {
      why = text("ranks recorded different operations: rank ", state_.ranks[0], ' ', operations[0], "; rank ",
                 state_.ranks[r], ' ', operations[r]);
    }
  });
  if (!why.empty()) graph.destroy();
  return why;
}

void Reducer::replay(RecordedStep const& step) {
  Turn const turn(mutex_);
  require_usable();
  require_between_steps("a replay");
  step.sends ? replay_and_send(step) : replay_alone(step);
}

void Reducer::replay_and_send(RecordedStep const& step) {
  check_replay(step);
  ReducerLane const& lane = state_.lanes[0];
  or_fail([&] {
    lane.communicator->check_health();  // first: a failed communicator frees the graph
    if (parts_.commit) parts_.commit->wait();
    recorder_.wait_for_older_replay(lane);
    parts_.weights.begin_replay();
    if (parts_.statistics) parts_.statistics->begin_replay(*step.graph, step.times);
    lane.communicator->replay(*step.graph, *lane.compute_stream);
    if (step.updates_buckets) updates_.mark_begun();
    if (parts_.commit) parts_.commit->replayed();
    recorder_.replayed(lane);
    lane.comm_stream->wait(*lane.compute_stream);  // the next operation there may be one without a wait
    parts_.used.was_sent();
    if (parts_.statistics) parts_.statistics->end_replay(step.times, state_.step.number);
    ++state_.step.number;
    if (step.updates) slices_updated_ = state_.step.number;
    parts_.weights.forget();
    state_.marks.forget();
  });
}

// A recording fixes whether the step has weights, and where it finds the sums of micro-steps before it.
void Reducer::check_replay(RecordedStep const& step) const {
  if (step.weighted != parts_.weights.given().has_value()) {
    throw Error(ErrorCode::invalid_state,
                step.weighted
                    ? "a replay without set_weight(), of a step that was recorded after one: call it "
                      "before each run()"
                    : "set_weight() before a replay of a step that was recorded without: call "
                      "record_again(), and set_weight() before each run()");
  }
  for (std::size_t p = 0; p < state_.parameters.size(); ++p) {
    if (step.marks[p] == RecordedStep::Mark::here || step.marks[p] == RecordedStep::Mark::elsewhere) continue;
    bool const expected = step.marks[p] == RecordedStep::Mark::before;
    if (expected == (state_.marks.used()[p] != 0)) continue;
    throw Error(
        ErrorCode::invalid_state,
        text(parameter_name(state_.parameters, p), expected ? " was not" : " was",
             " marked ready under no_sync() before a replay, and ", expected ? "it was" : "not",
             " before the recorded step, which does not mark it: run this step without the graph, or call "
             "record_again()"));
  }
}

void Reducer::replay_alone(RecordedStep const& step) {
  state_.lanes[0].communicator->check_health();
  step.graph->launch(*state_.lanes[0].compute_stream);
  for (std::size_t p = 0; p < state_.parameters.size(); ++p) {
    if (step.marks[p] == RecordedStep::Mark::none) continue;
    state_.marks.mark_micro_step(p, step.marks[p] == RecordedStep::Mark::elsewhere);
  }
}

}  // namespace ddp
