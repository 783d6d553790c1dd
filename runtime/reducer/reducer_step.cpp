// A step, from its first gradient to its end.
#include "reducer/reducer.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "reducer/call_program.hpp"

namespace ddp {

// Unless it has begun.
void Reducer::begin_step() {
  if (state_.step.has_begun()) return;
  refuse_capture();
  or_fail([&] {
    if (values_ && may_forget_updates_) warn_of_no_updates();
    parts_.each(&StepPart::begin);
    state_.step.state = StepState::open;
    state_.step.awaits_update = false;
    state_.step.launched = 0;
    parts_.each(&StepPart::head);
  });
}

void Reducer::mark(std::size_t index, Tensor source) {
  if (no_sync_depth_ > 0) {
    bool const elsewhere = source.view().data != nullptr;
    state_.marks.mark_micro_step(index, elsewhere);
    if (state_.step.is_recorded()) recorder_.mark_micro_step(index, elsewhere);
    return;
  }
  begin_step();
  or_fail([&] {
    state_.marks.mark(index, state_.step.number);
    if (state_.memory.has_arenas()) state_.memory.set_source(index, std::move(source));
    send_complete_buckets();
  });
}

void Reducer::no_gradient(std::size_t index, Tensor kept) {
  Turn const turn(mutex_);
  require_usable();
  check_index(index);
  bool const is_kept = kept.view().data != nullptr;
  if (is_kept) state_.memory.check_source(index, kept.view());
  if (no_sync_depth_ > 0) return;
  begin_step();
  or_fail([&] {
    state_.marks.skip(index, state_.step.number);
    if (is_kept) state_.memory.set_source(index, std::move(kept));
    send_complete_buckets();
  });
}

void Reducer::send_complete_buckets() {
  while (state_.step.launched < state_.marks.complete()) {
    std::size_t const first = state_.step.launched;
    state_.step.launched = reduction_->end_of_run(first);
    send(first, state_.step.launched);
  }
}

// Buckets first … end - 1, which become complete together.
void Reducer::send(std::size_t first, std::size_t end) {
  std::size_t const lane_index = state_.buckets.lane(first);
  ReducerLane const& lane = state_.lanes[lane_index];
  lane.communicator->annotate("bucket", first);
  lane.comm_stream->wait(*lane.compute_stream);
  parts_.each(&StepPart::before_bucket, first);
  GradientMemory::Filling const filling{
      .used = state_.marks.used(),
      .checks = parts_.checks.get(),
      // How NCCL scales depends on whether it works in place, and ranks must do the same.
      .may_send_sources = reduction_->may_send_sources() && !parts_.checks && !parts_.weights.given(),
      .is_recorded = state_.step.is_recorded()};
  for (std::size_t b = first; b < end; ++b) state_.memory.fill(b, filling);
  bool const last = end == state_.buckets.count();
  reduction_->reduce(first, end, parts_.weights.op(lane_index),
                     last ? std::function<void()>([this] { send_tail(); }) : std::function<void()>());
  for (std::size_t b = first; b < end; ++b) {
    state_.memory.give_back(b, state_.buckets.own_slices(b), state_.step.is_recorded());
    parts_.each(&StepPart::after_bucket, b);
    if (!parts_.checks) updates_.run(b);  // otherwise updates wait for the whole step
  }
}

void Reducer::send_tail() {
  parts_.each(&StepPart::tail);
  state_.step.state = StepState::tail_sent;
}

void Reducer::send_all() {
  state_.marks.finish(state_.step.number);
  send_complete_buckets();
  if (state_.step.state == StepState::open) send_tail();
}

void Reducer::send_rest() {
  Turn const turn(mutex_);
  require_usable();
  if (no_sync_depth_ > 0) return;
  refuse_capture();
  begin_step();
  or_fail([&] { send_all(); });
}

void Reducer::synchronize() {
  Turn const turn(mutex_);
  require_usable();
  if (no_sync_depth_ > 0) return;
  refuse_capture();
  or_fail([&] { state_.memory.check_claim(); });
  begin_step();
  or_fail([&] {
    parts_.each(&StepPart::begin_wait);
    for (ReducerLane const& lane : state_.lanes) lane.comm_stream->expect_wait();
    send_all();
    parts_.each(&StepPart::after_tail);
    if (parts_.checks) updates_.run_all();
    if (!state_.step.is_recorded()) state_.step.left_out_before |= parts_.weights.settle();
    for (ReducerLane const& lane : state_.lanes) lane.compute_stream->wait(*lane.comm_stream);
    updates_.wait();
    state_.memory.release_sources();  // later uses of their memory come after the reads
    parts_.each(&StepPart::end);
    finish_step();
  });
}

void Reducer::finish_step() {
  if (state_.step.is_recorded()) {
    recorder_.end_step(state_.marks);
    state_.marks.forget_step();
    state_.step.state = StepState::idle;
    return;
  }
  parts_.each(&StepPart::verdict);
  state_.step.state = StepState::idle;
  bool const first = state_.step.number == 0;
  std::vector<std::size_t> arrival;
  std::vector<std::size_t> left_out;
  bool const may_tell = make_cpu_lane_ && !cpu_lane_;
  if (first || may_tell) left_out = parts_.used.left_out();
  if (first) arrival.assign(state_.marks.arrival_order().begin(), state_.marks.arrival_order().end());
  parts_.weights.forget();
  state_.marks.end_step(state_.buckets.plan());
  if (first) prepare_further_steps(arrival, left_out);
  if (may_tell) tell_over_cpus(!left_out.empty());
  ++state_.step.number;  // at last: a step whose end throws is none, and the program does not update
  state_.step.awaits_update = true;
}

void Reducer::prepare_further_steps(std::span<std::size_t const> arrival,
                                    std::span<std::size_t const> left_out) {
  if (arrival.empty() && !left_out.empty() && left_out.size() == state_.parameters.size()) {
    log(LogLevel::warning,
        text("in the first step of ", state_.ranks.name(),
             " this rank said of no parameter whether it has a gradient, so all count as zero: expected "
             "gradient_ready() for each one, when its gradient is written, before synchronize(). "
             "Options::unused = error refuses such steps"));
  }
  if (state_.buckets.may_rebuild()) {
    meet();
    std::vector<std::size_t> late;
    std::ranges::copy_if(left_out, std::back_inserter(late), [&](std::size_t p) {
      return std::ranges::find(arrival, p) == arrival.end();  // otherwise it was said to have no gradient
    });
    auto plan = state_.buckets.plan_for(state_.buckets.agreed_order(arrival, late, state_.ranks));
    if (*plan != state_.buckets.plan()) use_plan(std::move(plan));
  }
  choose_queues();
}

// At the end of a step, until the lane is there: some rank leaves a parameter out, the begin of its next step
// tells the others, and all make the lane at the end of that one (R27).
void Reducer::tell_over_cpus(bool leaves_out) {
  if (state_.step.left_out_before) {
    meet();
    cpu_lane_ = make_cpu_lane_();
    parts_.used.tell_over(*cpu_lane_);
  } else if (leaves_out) {
    parts_.weights.say_left_out();
  }
  state_.step.left_out_before = false;
}

// ---- steps of other ranks (R11)

void Reducer::join(std::function<void()> const& update, std::function<void()> const& before_step) {
  Turn const turn(mutex_);
  ProgramCall const counted;  // of both functions
  require(update != nullptr, "join(): expected what the program does after a step, as optimizer.step()");
  if (!parts_.uneven) {
    throw Error(ErrorCode::invalid_state,
                "join(): set Options::uneven, so that ranks tell each other in each step who has data");
  }
  require_not_in_step("join()", "call synchronize() first");
  if (no_sync_depth_ > 0) {
    throw Error(ErrorCode::invalid_state, "join() under no_sync(): end the guard first");
  }
  refuse_capture();
  bool goes_on = true;
  while (goes_on) {
    require_usable();  // `update` may keep to itself that a rank was lost
    if (before_step) before_step();
    require_not_in_step("join()", "before_step has begun one");
    state_.step.kind = StepKind::joined;
    try {
      goes_on = begin_step_of_others();
      if (goes_on) synchronize();
    } catch (...) {
      state_.step.kind = StepKind::own;
      throw;
    }
    state_.step.kind = StepKind::own;
    if (goes_on) update();
  }
}

// False if no rank has data: then this is no step.
bool Reducer::begin_step_of_others() {
  // Data ended in the middle of an accumulation: what was added up so far belongs to no step.
  state_.marks.forget();
  begin_step();
  bool goes_on = false;
  or_fail([&] {
    goes_on = parts_.uneven->any_has_data();
    if (goes_on) return;
    state_.step.left_out_before |= parts_.weights.settle();
    for (ReducerLane const& lane : state_.lanes) lane.compute_stream->wait(*lane.comm_stream);
    parts_.weights.forget();
    state_.step.state = StepState::idle;
  });
  return goes_on;
}

// ---- its end by an error

// After abort() work that is still on the stream fails at once: a mere consequence, which is only logged.
void Reducer::drain(Stream& stream) const noexcept {
  try {
    stream.synchronize();
  } catch (std::exception const& consequence) {
    log(LogLevel::debug, text("after the failure of ", state_.ranks.name(), ": ", consequence.what()));
  }
}

void Reducer::fail(std::exception const& error) noexcept {
  try {
    state_.ranks.report_failure(error);
    bool const is_first = state_.step.state != StepState::failed;
    state_.step.state = StepState::failed;
    for (ReducerLane const& lane : state_.lanes) lane.communicator->abort(error.what());
    if (cpu_lane_) cpu_lane_->communicator->abort(error.what());
    if (is_first) {
      state_.step.failure = error.what();
      auto const* const of_group = dynamic_cast<CommError const*>(&error);
      if (of_group != nullptr) state_.step.lost = of_group->failure();
    }
    for (ReducerLane const& lane : state_.lanes) drain(*lane.comm_stream);
    for (auto const& stream : updates_.streams()) drain(*stream);
    state_.memory.release_sources();
  } catch (...) {  // out of memory: the exception that propagates says enough
  }
}

void Reducer::give_up(std::function<std::string()> const& reason) noexcept {
  try {
    for (ReducerLane const& lane : state_.lanes) lane.communicator->check_health();
    throw Error(ErrorCode::invalid_state, text("rank ", state_.ranks.self(), ' ', reason()));
  } catch (std::exception const& error) {
    fail(error);
  }
}

void Reducer::abandon_step(std::string_view reason, bool others_began) noexcept {
  Turn const turn(mutex_);
  if (state_.step.is_recorded()) return;  // ranks go on without a graph
  if (others_began ? state_.step.state == StepState::failed : !state_.step.has_begun()) return;
  give_up([&] {
    return text("gave up synchronised step ", state_.step.number, " of ", state_.ranks.name(), ": ", reason);
  });
}

// A step whose end threw on the host has no update behind it, though the GPU may have committed it.
std::uint64_t Reducer::committed_steps() const {
  std::uint64_t const done = steps();
  return parts_.commit ? std::min(parts_.commit->committed(), done) : done;
}

bool Reducer::awaits_update() const {
  Turn const turn(mutex_);
  return state_.step.awaits_update;
}

void Reducer::await_commits() const {
  if (parts_.commit) parts_.commit->wait();
}

// Work on the streams uses this object and its memory, so the streams are drained. In the middle of a step
// that work may wait for other ranks, so it is aborted first. It is also aborted if an exception ends this
// rank, so that the others need not wait until its process has ended.
Reducer::~Reducer() {
  bool const unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  if (state_.step.has_begun() || (unwinding && state_.step.state != StepState::failed)) {
    give_up([&] {
      return text(
          "destroyed ", state_.ranks.name(),
          state_.step.has_begun() ? " in the middle of synchronised step " : " by an exception, after step ",
          state_.step.number);
    });
  }
  for (ReducerLane const& lane : state_.lanes) drain(*lane.comm_stream);
  if (cpu_lane_) drain(*cpu_lane_->comm_stream);
  for (auto const& stream : updates_.streams()) drain(*stream);
  for (ReducerLane const& lane : state_.lanes) drain(*lane.compute_stream);
  if (parts_.statistics) parts_.statistics->report_rest();
}

}  // namespace ddp
