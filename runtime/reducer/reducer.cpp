#include "ddp/reducer/reducer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {
namespace {

// How long a rank lets the others read a verdict, at most, before it throws.
constexpr std::chrono::milliseconds kLongestReading = std::chrono::seconds(30);

}  // namespace

// ---- a step

// A replayed graph would skip the host's part of a step, including the comparison between ranks. Throws
// before anything is changed: the Reducer can be used further.
void Reducer::Impl::refuse_capture() const {
  if (recording_ != nullptr) return;
  for (ReducerLane const& lane : lanes_) {
    if (!lane.compute_stream->is_capturing()) continue;
    throw Error(ErrorCode::invalid_state,
                text("a step of ", name_,
                     " cannot be captured into a CUDA graph: replays would skip what the host does in it. "
                     "Capture the passes and the optimizer without it, and call gradient_ready() and "
                     "synchronize() between the replays"));
  }
}

void Reducer::Impl::begin_step() {
  if (statistics_) statistics_->times().begin_step();
  in_step_ = true;
  tail_launched_ = false;
  launched_ = 0;
  if (say_ && recording_ == nullptr && lanes_[answering_lane_].device.kind == DeviceKind::cuda) hear_flags();
  bool const by_live = options_.uneven == ReducerOptions::Uneven::divide_by_live &&
                       options_.reduction == ReducerOptions::Reduction::average;
  if (by_live && weight_ < 0) weight_ = joined_ ? 0 : 1;
  if (recording_ != nullptr) {  // what is recorded must be behind the begin of the recording
    lanes_[0].comm_stream->wait(*lanes_[0].compute_stream);
    if (weight_ >= 0) heads_[0]->send();
  } else {
    for (auto const& head : heads_) head->begin(steps_, weight_, since_);
  }
  since_ = {};
  if (has_data_) has_data_->exchange(std::array{static_cast<std::uint8_t>(joined_ ? 0 : 1)});
  if (checks_) checks_->begin_step();
}

void Reducer::Impl::launch_rest() {
  check_marks();
  tracker_.finish();
  launch_complete_buckets();
  if (!tail_launched_) launch_tail();
}

void Reducer::Impl::send_rest() {
  require_usable();
  if (no_sync_depth_ > 0) return;
  refuse_capture();
  or_fail([&] {
    if (!in_step_) begin_step();
    launch_rest();
  });
}

void Reducer::Impl::synchronize() {
  require_usable();
  if (no_sync_depth_ > 0) return;
  refuse_capture();
  or_fail([&] {
    claim_->check();
    if (!in_step_) begin_step();
    if (statistics_) statistics_->times().begin_wait();
    for (ReducerLane const& lane : lanes_) lane.comm_stream->expect_wait();
    launch_rest();
    if (statistics_ && recording_ == nullptr)
      statistics_->keep(answering_lane_, *lanes_[answering_lane_].comm_stream);
    if (checks_) finish_checks();
    for (auto const& head : heads_) {
      if (recording_ == nullptr) head->settle();
    }
    for (ReducerLane const& lane : lanes_) lane.compute_stream->wait(*lane.comm_stream);
    for (std::size_t l = 0; l < update_streams_.size(); ++l) {
      lanes_[l].compute_stream->wait(*update_streams_[l]);
    }
    sources_.release();  // what uses their memory next is behind what reads them
    if (statistics_) end_measured_step();
    recording_ != nullptr ? end_recorded_step() : finish_step();
  });
}

void Reducer::Impl::finish_step() {
  if (options_.uneven == ReducerOptions::Uneven::error) {
    has_data_->fetch();
    throw_uneven();
  }
  if (options_.unused == ReducerOptions::Unused::error) {
    used_[answering_lane_].fetch();
    throw_unused();
  }
  if (options_.nonfinite == ReducerOptions::Nonfinite::error) throw_nonfinite();
  if (!weight_checks_.empty() && (steps_ + 1) % options_.verify_every == 0) verify_weights();
  ++steps_;
  std::fill(summed_elsewhere_.begin(), summed_elsewhere_.end(), std::uint8_t{0});
  weight_ = -1;
  in_step_ = false;
  bool const learnt = options_.allow_repeated_ready && learn_marks();
  if (steps_ == 1) {
    if (options_.rebuild_buckets) {
      meet();
      build(arrival_order_of_rank_0());
    }
    choose_queues();
  }
  if (learnt) {
    tracker_ = ReadyTracker(*plan_, expected_marks_);
  } else {
    tracker_.reset();
  }
}

// By the end of a first step the libraries that a program uses have made their streams.
void Reducer::Impl::choose_queues() {
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    if (lanes_[l].device.kind != DeviceKind::cuda) continue;
    cuda::choose_queue(*lanes_[l].comm_stream, *lanes_[l].compute_stream);
    if (!update_streams_.empty()) cuda::choose_queue(*update_streams_[l], *lanes_[l].compute_stream);
  }
}

// Throws if a rank has failed in this step: it would not come to what ranks exchange next, and a wait there
// would not notice.
void Reducer::Impl::meet() {
  for (ReducerLane const& lane : lanes_) {
    lane.comm_stream->expect_wait();
    lane.communicator->barrier(*lane.comm_stream);
    lane.comm_stream->synchronize();
  }
}

// All ranks come here, with the same bitmaps. The first one must not end the group, or its process, before
// the others have read their bitmaps.
void Reducer::Impl::let_others_read() noexcept {
  try {
    Deadline const deadline = Deadline::after(std::min(timeout_, kLongestReading));
    static_cast<void>(control_->all_gather(text(name_, "/verdict"), {}, group_, deadline));
  } catch (std::exception const& error) {  // a rank that does not come has failed in another way
    log(LogLevel::debug, error.what());
  }
}

// Every rank has the same bitmaps, so every rank throws the same error.
void Reducer::Impl::throw_unused() {
  std::string complaints;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    std::vector<Rank> ranks;
    for (std::size_t r = 0; r < group_.size(); ++r) {
      if (!used_[answering_lane_].by(r, p)) ranks.push_back(group_[r]);
    }
    if (!ranks.empty()) {
      complaints += text(complaints.empty() ? "" : "; ", name_of(p), " on rank",
                         ranks.size() == 1 ? " " : "s ", ddp::join(ranks, ", "));
    }
  }
  if (complaints.empty()) return;
  let_others_read();
  throw Error(ErrorCode::invalid_state,
              text("gradients that were not marked ready in synchronised step ", steps_, ": ", complaints,
                   ". Every parameter must take part in every step, or set ReducerOptions::unused to zero"));
}

void Reducer::Impl::set_weight(double weight) {
  require_usable();
  double const most = std::numeric_limits<double>::max() / 2 / static_cast<double>(group_.size());
  require(weight >= 0 && weight <= most, [&] {
    return text("set_weight: a weight is a number from 0 to ", most, ", so that those of ", group_.size(),
                " ranks can be added up; this is ", weight);
  });
  if (no_sync_depth_ > 0) {
    throw Error(
        ErrorCode::invalid_state,
        "set_weight() under no_sync(): the weight belongs to the step that sends the sum of all micro-steps; "
        "call it once, outside the guard, before that step's backward pass");
  }
  if (options_.uneven == ReducerOptions::Uneven::divide_by_all) {
    throw Error(ErrorCode::invalid_state,
                "set_weight() with ReducerOptions::uneven = divide_by_all: a weighted mean is divided by the "
                "weights; set uneven to divide_by_live");
  }
  if (in_step_) {
    throw Error(ErrorCode::invalid_state,
                "set_weight() after the step's first gradient_ready(): call it before the backward pass");
  }
  if (recording_ != nullptr) {
    throw Error(ErrorCode::invalid_state,
                "set_weight() in a recorded step: every replay would use this one weight; call it before "
                "StepGraph::run()");
  }
  weight_ = weight;
}

void Reducer::Impl::enter_no_sync() {
  require_usable();
  if (in_step_ && no_sync_depth_ == 0) {
    throw Error(
        ErrorCode::invalid_state,
        "no_sync() in the middle of a synchronised step: gradients of this step have been sent already; "
        "open the guard before the step's backward pass, or call synchronize() first");
  }
  ++no_sync_depth_;
}

void Reducer::Impl::between_steps(std::string_view what,
                                  std::function<void(std::span<ReducerLane const>)> const& send) {
  require_usable();
  if (no_sync_depth_ > 0) return;
  if (in_step_) {
    throw Error(ErrorCode::invalid_state,
                text(what,
                     " in the middle of a synchronised step: call it before the forward pass of a step, or "
                     "call synchronize() first"));
  }
  refuse_capture();
  try {
    send(lanes_);
  } catch (std::exception const& error) {
    if (recording_ == nullptr) fail(error);
    throw;
  }
}

std::size_t Reducer::Impl::messages() const noexcept {
  std::size_t messages = 0;
  for (std::size_t b = 0; b < plan_->buckets().size(); ++b) messages += memory_.messages(b).size();
  return messages;
}

bool Reducer::Impl::has_gradient(std::size_t index) {
  require_usable();
  check_index(index);
  if (in_step_) {
    throw Error(ErrorCode::invalid_state, "has_gradient() in the middle of a step: call synchronize() first");
  }
  if (steps_ == 0) return false;
  used_[answering_lane_].fetch();
  return used_[answering_lane_].by_any(index);
}

// After abort() what is still on the stream fails at once. That is only a consequence, so it is only logged.
void Reducer::Impl::drain(Stream& stream) noexcept {
  try {
    stream.synchronize();
  } catch (std::exception const& consequence) {
    log(LogLevel::debug, text("after the failure of ", name_, ": ", consequence.what()));
  }
}

void Reducer::Impl::fail(std::exception const& error) noexcept {
  try {
    control_->report_failure(error);
    if (failure_.empty()) failure_ = error.what();
    for (ReducerLane const& lane : lanes_) lane.communicator->abort(error.what());
    for (ReducerLane const& lane : lanes_) drain(*lane.comm_stream);
    for (auto const& stream : update_streams_) drain(*stream);
    sources_.release();
  } catch (...) {  // out of memory: the exception that is on its way says enough
  }
}

template <class Reason>
void Reducer::Impl::give_up(Reason const& reason) noexcept {
  try {
    for (ReducerLane const& lane : lanes_) lane.communicator->check_health();
    throw Error(ErrorCode::invalid_state, text("rank ", control_->rank(), ' ', reason()));
  } catch (std::exception const& error) {
    fail(error);
  }
}

void Reducer::Impl::abandon_step(std::string_view reason, bool others_began) noexcept {
  if (recording_ != nullptr) return;  // ranks go on without a graph
  if (others_began ? !failure_.empty() : !in_step()) return;
  give_up([&] { return text("gave up synchronised step ", steps_, " of ", name_, ": ", reason); });
}

// Work on the streams uses this object and its memory, so the streams are drained. In the middle of a step
// that work may wait for other ranks, so it is aborted first. It is also aborted if an exception ends this
// rank, so that the others need not wait until its process has ended.
Reducer::Impl::~Impl() {
  bool const unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  if ((in_step_ || unwinding) && failure_.empty()) {
    give_up([&] {
      return text("destroyed ", name_,
                  in_step_ ? " in the middle of synchronised step " : " by an exception, after step ",
                  steps_);
    });
  }
  for (ReducerLane const& lane : lanes_) drain(*lane.comm_stream);
  for (auto const& stream : update_streams_) drain(*stream);
  for (ReducerLane const& lane : lanes_) drain(*lane.compute_stream);
  report_rest();
}

void Reducer::Impl::throw_unusable() const {
  throw Error(ErrorCode::invalid_state,
              text("this DistributedDataParallel failed before and cannot be used any more: ", failure_));
}

// ---- the public face

Reducer::Reducer(std::string name, std::shared_ptr<ControlPlane> control, std::vector<Rank> group,
                 std::vector<ReducerLane> lanes, std::vector<Parameter> parameters, ReducerOptions options,
                 std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(std::move(name), std::move(control), std::move(group), std::move(lanes),
                                   std::move(parameters), std::move(options), timeout)) {}
Reducer::~Reducer() { leave_to_maker(impl_); }

void Reducer::gradient_ready(std::size_t index) { impl_->turn()->gradient_ready(index); }
void Reducer::gradient_ready(std::size_t index, Tensor source) {
  impl_->turn()->gradient_ready(index, std::move(source));
}
void Reducer::no_gradient(std::size_t index) { impl_->turn()->no_gradient(index, {}); }
void Reducer::no_gradient(std::size_t index, Tensor kept) {
  impl_->turn()->no_gradient(index, std::move(kept));
}
void Reducer::compute_on(Stream& stream) { impl_->turn()->compute_on(stream); }
void Reducer::abandon_step(std::string_view reason, bool others_began) noexcept {
  impl_->turn()->abandon_step(reason, others_began);
}
void Reducer::rebind_value(std::size_t index, TensorView const& value) {
  impl_->turn()->rebind_value(index, value);
}
void Reducer::send_rest() { impl_->turn()->send_rest(); }
void Reducer::synchronize() { impl_->turn()->synchronize(); }
void Reducer::set_weight(double weight) { impl_->turn()->set_weight(weight); }
void Reducer::since_last_step(bool changed_parameters, bool cleared_gradients) {
  impl_->turn()->since_last_step(changed_parameters, cleared_gradients);
}
void Reducer::set_comm_hook(CommHook hook) { impl_->turn()->set_comm_hook(std::move(hook)); }
void Reducer::on_bucket_ready(BucketReady update) { impl_->turn()->on_bucket_ready(std::move(update)); }
void Reducer::zero_gradients() { impl_->turn()->zero_gradients(); }
void Reducer::tell_with_tail(std::size_t flags, TellFlags say) {
  impl_->turn()->tell_with_tail(flags, std::move(say));
}
std::span<std::uint8_t const> Reducer::told_with_tail() { return impl_->turn()->told_with_tail(); }
bool Reducer::has_gradient(std::size_t index) { return impl_->turn()->has_gradient(index); }
TensorView Reducer::used_parameters() const { return impl_->turn()->used_parameters(); }
// These two wait for no other call: a CPU's work in on_bucket_ready() asks in a thread for which
// synchronize() waits. What they read never changes.
TensorView Reducer::gradient_norm() const { return impl_->gradient_norm(); }
TensorView Reducer::found_nonfinite() const { return impl_->found_nonfinite(); }
void Reducer::begin_forward() { impl_->turn()->begin_forward(); }
void Reducer::report_statistics(std::function<void(std::vector<StepStatistics>)> report) {
  impl_->turn()->report_statistics(std::move(report));
}
std::vector<NonfiniteGradient> Reducer::nonfinite_gradients() { return impl_->turn()->nonfinite_gradients(); }
void Reducer::join(std::function<void()> const& update, std::function<void()> const& before_step) {
  impl_->turn()->join_others(update, before_step);
}
bool Reducer::in_step() const noexcept { return impl_->turn()->in_step(); }
bool Reducer::is_recording() const noexcept { return impl_->turn()->is_recording(); }
void Reducer::between_steps(std::string_view what,
                            std::function<void(std::span<ReducerLane const>)> const& send) {
  impl_->turn()->between_steps(what, send);
}
std::span<Parameter const> Reducer::parameters() const noexcept { return impl_->parameters(); }
TensorView Reducer::gradient(std::size_t index) const { return impl_->turn()->gradient(index); }
BucketPlan const& Reducer::plan() const noexcept { return impl_->plan(); }
std::uint64_t Reducer::steps() const noexcept { return impl_->turn()->steps(); }
std::size_t Reducer::messages() const noexcept { return impl_->turn()->messages(); }
int Reducer::rebuilds() const noexcept { return impl_->turn()->rebuilds(); }

NoSyncGuard Reducer::no_sync(bool when) {
  if (!when) return {};
  impl_->turn()->enter_no_sync();
  return NoSyncGuard(*impl_);
}

NoSyncGuard::NoSyncGuard(Reducer::Impl& reducer) : reducer_(&reducer) {}
NoSyncGuard::NoSyncGuard(NoSyncGuard&& other) noexcept : reducer_(std::exchange(other.reducer_, nullptr)) {}
NoSyncGuard& NoSyncGuard::operator=(NoSyncGuard&& other) noexcept {
  NoSyncGuard taken(std::move(other));
  std::swap(reducer_, taken.reducer_);  // `taken` ends what this one guarded
  return *this;
}
NoSyncGuard::~NoSyncGuard() {
  if (reducer_ != nullptr) reducer_->turn()->leave_no_sync();
}

}  // namespace ddp
