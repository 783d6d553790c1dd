// What a program asks of a Reducer between steps, and how it is made.
#include <algorithm>
#include <utility>

#include "core/record.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "device/cuda/backend.hpp"
#include "reducer/call_program.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/memory/in_place_messages.hpp"
#include "reducer/reducer.hpp"
#include "reducer/sharding/sharded_reduction.hpp"

namespace ddp {
namespace {

void check_compute_stream(Device device, Stream& stream) {
  require(device.kind != DeviceKind::cpu || host_stream(stream).is_inline(),
          "a Reducer of CPU gradients computes in the calling thread: give it an inline compute stream");
}

}  // namespace

Reducer::Reducer(ReducerRanks ranks, std::vector<ReducerLane> lanes, std::vector<Parameter> parameters,
                 DistributedDataParallelOptions const& options, std::string const& compared)
    : state_(std::move(ranks), std::move(lanes), std::move(parameters), options),
      parts_(options, state_),
      reduction_(std::make_unique<AllReduce>(state_)),
      updates_(state_) {
  for (ReducerLane const& lane : state_.lanes) check_compute_stream(lane.device, *lane.compute_stream);
  use_plan(state_.buckets.plan_for(reverse_order(state_.parameters.size())), compared);
  if (!state_.buckets.is_sharded()) return;
  values_.emplace(state_, state_.memory.make_arenas(state_.buckets.plan()));
  reduction_ = std::make_unique<ShardedReduction>(state_, *values_, updates_);
}

// R12: finds ranks that differ before they could hang.
void Reducer::use_plan(std::unique_ptr<BucketPlan const> plan, std::string const& compared) {
  state_.ranks.require_same(
      "plan",
      text(state_.memory.describe(), ", ", parts_.describe(), compared.empty() ? "" : ", ", compared,
           state_.marks.repeated() ? ", allow_repeated_ready" : "", ", ", state_.buckets.describe(*plan)),
      "give every rank the same options");
  // Neighbouring gradients may be sent as one message only if they are neighbours on every rank.
  bool merge = false;
  if (state_.memory.is_in_place()) {
    merge = first_to_differ(state_.ranks.exchange("messages", message_layout(*plan, state_.parameters))) == 0;
    if (!merge) {
      log(LogLevel::info, "in_place gradients lie in another order on some ranks: each is sent by itself");
    }
  }
  state_.memory.plan_changed(*plan, merge);
  state_.buckets.use(std::move(plan));
  state_.marks.plan_changed(state_.buckets.plan());
  parts_.each(&StepPart::plan_changed);
}

// Called after the first step: by then the libraries of a program have made their streams.
void Reducer::choose_queues() {
  for (std::size_t l = 0; l < state_.lanes.size(); ++l) {
    ReducerLane const& lane = state_.lanes[l];
    if (lane.device.kind != DeviceKind::cuda) continue;
    cuda::choose_queue(*lane.comm_stream, *lane.compute_stream);
    if (!updates_.streams().empty()) cuda::choose_queue(*updates_.streams()[l], *lane.compute_stream);
  }
}

// A barrier. Throws if a rank has failed in this step: that rank would not take part in the next exchange,
// and a wait there would not notice the failure.
void Reducer::meet() {
  for (ReducerLane const& lane : state_.lanes) ddp::meet(lane);
}

// ---- what a call requires

void Reducer::require_usable() const {
  if (state_.step.state != StepState::failed) return;
  std::string const message =
      text("this DistributedDataParallel failed before and cannot be used any more: ", state_.step.failure);
  if (state_.step.lost) throw CommError(*state_.step.lost, message);  // a program may still rebuild() (R26)
  throw Error(ErrorCode::invalid_state, message);
}

void Reducer::require_not_in_step(std::string_view what, std::string_view instead) const {
  if (!state_.step.has_begun()) return;
  throw Error(ErrorCode::invalid_state, text(what, " in the middle of a synchronised step: ", instead));
}

void Reducer::require_between_steps(std::string_view what) const {
  require_not_in_step(what, "call it between synchronised steps");
  if (no_sync_depth_ == 0) return;
  throw Error(ErrorCode::invalid_state, text(what, " under no_sync(): call it between synchronised steps"));
}

void Reducer::check_index(std::size_t index) const {
  if (index < state_.parameters.size()) return;
  throw Error(ErrorCode::invalid_argument,
              text("there is no parameter ", index, ", this object has ", state_.parameters.size(), " (0 to ",
                   state_.parameters.size() - 1, ")"));
}

// A replayed graph would skip the host's part of a step, including the comparison between ranks. Throws
// before anything is changed: the Reducer can be used further.
void Reducer::refuse_capture() const {
  if (state_.step.is_recorded()) return;
  for (ReducerLane const& lane : state_.lanes) {
    if (!lane.compute_stream->is_capturing()) continue;
    throw Error(ErrorCode::invalid_state,
                text("a step of ", state_.ranks.name(),
                     " cannot be captured into a CUDA graph: replays would skip what the host does in it. "
                     "Capture the passes and the optimizer without it, and call gradient_ready() and "
                     "synchronize() between the replays"));
  }
}

std::string Reducer::why_not_rebuilt(bool goes_back) const {
  Turn const turn(mutex_);
  if (no_sync_depth_ > 0) return "a guard of no_sync() lives, of micro-steps that are lost; end it before";
  if (program_calls > 0) {
    return "it is called by a function that a step calls, such as a comm hook, or that is "
           "recorded: let the error through, and catch it around the step";
  }
  if (values_ && !goes_back) {
    return "with Options::sharding the lost rank's part of the optimizer is lost: give Replicated a function "
           "that goes back to the last checkpoint";
  }
  return state_.lanes.size() > 1 ? "its parameters lie on several devices" : "";
}

// ---- calls

void Reducer::gradient_ready(std::size_t index) {
  Turn const turn(mutex_);
  require_usable();
  check_index(index);
  mark(index, {});
}

void Reducer::gradient_ready(std::size_t index, Tensor source) {
  Turn const turn(mutex_);
  require_usable();
  check_index(index);
  state_.memory.check_source(index, source.view());
  bool const is_there =
      source.view().data == state_.memory.gradient(index).data || source.view().count() == 0;
  mark(index, is_there ? Tensor() : std::move(source));
}

void Reducer::since_last_step(bool changed_parameters, bool cleared_gradients) {
  Turn const turn(mutex_);
  if (state_.step.has_begun() || no_sync_depth_ > 0) return;
  parts_.weights.since_last_step(SinceLastStep::of(changed_parameters, cleared_gradients));
}

void Reducer::compute_on(Stream& stream) {
  Turn const turn(mutex_);
  require_usable();
  auto const lane = std::ranges::find(state_.lanes, stream.device(), &ReducerLane::device);
  require(lane != state_.lanes.end(), [&] {
    return text("compute_on(): expected a stream of a device on which parameters lie, found one of ",
                stream.device());
  });
  check_compute_stream(lane->device, stream);
  if (lane->compute_stream == &stream) return;
  if (state_.step.has_begun()) or_fail([&] { lane->comm_stream->wait(*lane->compute_stream); });
  lane->compute_stream = &stream;
}

void Reducer::set_weight(double weight) {
  Turn const turn(mutex_);
  require_usable();
  if (no_sync_depth_ > 0) {
    throw Error(
        ErrorCode::invalid_state,
        "set_weight() under no_sync(): the weight belongs to the step that sends the sum of all micro-steps; "
        "call it once, outside the guard, before that step's backward pass");
  }
  if (state_.step.has_begun()) {
    throw Error(ErrorCode::invalid_state,
                "set_weight() after the step's first gradient_ready(): call it before the backward pass");
  }
  if (state_.step.is_recorded()) {
    throw Error(ErrorCode::invalid_state,
                "set_weight() in a recorded step: every replay would use this one weight; call it before "
                "StepGraph::run()");
  }
  parts_.weights.set(weight);
}

void Reducer::set_comm_hook(CommHook hook) {
  Turn const turn(mutex_);
  require_usable();
  if (state_.step.number != 0 || state_.step.has_begun()) {
    throw Error(
        ErrorCode::invalid_state,
        text("set_comm_hook() after synchronised step ", state_.step.has_begun() ? "0 has begun" : "0",
             ": ranks must change at the same time, so call it before the first backward pass"));
  }
  require(!hook.reduce || !hook.name.empty(), "set_comm_hook(): give the hook a name, which ranks compare");
  require(
      !hook.reduce || !values_,
      "set_comm_hook() with Options::sharding: ranks get only their parts of a bucket; for gradients that "
      "travel in another type set reduce_dtype");
  std::string const name = hook.reduce ? text("the comm hook \"", hook.name, '"') : "no comm hook";
  state_.ranks.require_same("hook", name, "give every rank the same hook");
  if (values_) return;
  if (!hook.reduce) {
    reduction_ = std::make_unique<AllReduce>(state_);
    return;
  }
  reduction_ = std::make_unique<HookReduction>(state_, std::move(hook));
}

void Reducer::on_bucket_ready(BucketReady update) {
  Turn const turn(mutex_);
  require_usable();
  require(!values_, "on_bucket_ready() with Options::sharding: use on_slice_ready()");
  if (update) require_updates_can_be_early("on_bucket_ready()");
  require_not_in_step("on_bucket_ready()", "some of its buckets may be through; call it between steps");
  updates_.use("on_bucket_ready()", std::move(update));
  if (state_.step.number > 0) choose_queues();
}

void Reducer::require_updates_can_be_early(std::string_view what) const {
  require(!parts_.may_refuse(), [&] {
    return text(
        what,
        ": with Options::unused, nonfinite or uneven = error a step may be refused at its end, when its "
        "first parameters would be updated already; set unused to zero, nonfinite to flag, uneven to "
        "divide_by_live. So it may with await_commit on a GPU under --survive: leave that out");
  });
}

void Reducer::begin_forward() {
  Turn const turn(mutex_);
  require_usable();
  if (!parts_.statistics || state_.step.has_begun()) return;
  refuse_capture();
  parts_.statistics->times().begin_forward();
}

NoSyncGuard Reducer::no_sync(bool when) {
  if (!when) return {};
  Turn const turn(mutex_);
  require_usable();
  if (no_sync_depth_ == 0) {
    require_not_in_step("no_sync()",
                        "gradients of this step have been sent already; open the guard before the step's "
                        "backward pass, or call synchronize() first");
  }
  ++no_sync_depth_;
  return NoSyncGuard(*this);
}

void Reducer::leave_no_sync() {
  Turn const turn(mutex_);
  --no_sync_depth_;
}

void Reducer::zero_gradients() {
  Turn const turn(mutex_);
  require_usable();
  require_not_in_step("zero_gradients()", "call synchronize() first");
  state_.memory.zero();
}

bool Reducer::has_gradient(std::size_t index) {
  Turn const turn(mutex_);
  require_usable();
  check_index(index);
  require_not_in_step("has_gradient()", "call synchronize() first");
  return state_.step.number > 0 && parts_.used.by_any(index);
}

TensorView Reducer::used_parameters() const {
  Turn const turn(mutex_);
  return parts_.used.words();
}

std::vector<NonfiniteGradient> Reducer::nonfinite_gradients() {
  Turn const turn(mutex_);
  require_usable();
  static_cast<void>(found_nonfinite());
  require_not_in_step("nonfinite_gradients()", "call synchronize() first");
  return parts_.checks->nonfinite_gradients();
}

void Reducer::rebind_value(std::size_t index, TensorView const& value) {
  Turn const turn(mutex_);
  check_index(index);
  require(!values_, [&] {
    return text("rebind_value(", index,
                ") with Options::sharding: the values of a bucket lie together; copy "
                "new values to where bind_value says");
  });
  auto const name = [&] { return parameter_name(state_.parameters, index); };
  TensorView& now = state_.parameters[index].value;
  require(value.shape == now.shape && value.dtype == now.dtype && value.device == now.device, [&] {
    return text("rebind_value(", index, "): expected ", describe(now), " for ", name(), ", found ",
                describe(value), "; a parameter of another form needs a new DistributedDataParallel");
  });
  require_memory(name, value);
  state_.memory.move_claim(now, value);
  now = value;
}

void Reducer::tell_with_tail(std::size_t flags, UsedParameters::TellFlags say) {
  Turn const turn(mutex_);
  require_usable();
  require(state_.step.number == 0 && !state_.step.has_begun(),
          "tell_with_tail() after the first step has begun");
  parts_.used.carry(flags, std::move(say));
}

std::span<std::uint8_t const> Reducer::told_with_tail() {
  Turn const turn(mutex_);
  require_usable();
  return parts_.used.flags();
}

void Reducer::between_steps(std::string_view what,
                            std::function<void(std::span<ReducerLane const>)> const& send) {
  Turn const turn(mutex_);
  require_usable();
  if (no_sync_depth_ > 0) return;
  require_not_in_step(what, "call it before the forward pass of a step, or call synchronize() first");
  refuse_capture();
  or_fail([&] { send(state_.lanes); });
}

void Reducer::report_statistics(std::function<void(std::vector<StepStatistics>)> report) {
  Turn const turn(mutex_);
  if (parts_.statistics) parts_.statistics->report_to(std::move(report));
}

bool Reducer::in_step() const {
  Turn const turn(mutex_);
  return state_.step.has_begun();
}

bool Reducer::is_recording() const {
  Turn const turn(mutex_);
  return state_.step.is_recorded();
}

TensorView Reducer::gradient(std::size_t index) const {
  Turn const turn(mutex_);
  check_index(index);
  return state_.memory.gradient(index);
}

std::uint64_t Reducer::steps() const {
  Turn const turn(mutex_);
  return state_.step.number;
}

std::size_t Reducer::messages() const {
  Turn const turn(mutex_);
  std::size_t messages = 0;
  for (std::size_t b = 0; b < state_.buckets.count(); ++b) messages += state_.memory.messages(b).size();
  return messages;
}

int Reducer::rebuilds() const {
  Turn const turn(mutex_);
  return state_.buckets.rebuilds();
}

NoSyncGuard::NoSyncGuard(Reducer& reducer) : reducer_(&reducer) {}
NoSyncGuard::NoSyncGuard(NoSyncGuard&& other) noexcept : reducer_(std::exchange(other.reducer_, nullptr)) {}
NoSyncGuard& NoSyncGuard::operator=(NoSyncGuard&& other) noexcept {
  NoSyncGuard taken(std::move(other));
  std::swap(reducer_, taken.reducer_);  // `taken` ends the guard of this one
  return *this;
}
NoSyncGuard::~NoSyncGuard() {
  if (reducer_ != nullptr) reducer_->leave_no_sync();
}

}  // namespace ddp
