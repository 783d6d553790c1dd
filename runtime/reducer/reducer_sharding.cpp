// A sharded optimizer (R25): whose elements are updated where, and when.
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "reducer/call_program.hpp"
#include "reducer/reducer.hpp"

namespace ddp {

void Reducer::require_sharded(std::string_view what) const {
  if (values_) return;
  throw Error(ErrorCode::invalid_state, text(what, ": set Options::sharding to Sharding::optimizer"));
}

std::span<Slice const> Reducer::slices() const {
  Turn const turn(mutex_);
  require_sharded("slices()");
  return values_->slices();
}

void Reducer::on_slice_ready(SliceReady update) {
  Turn const turn(mutex_);
  require_usable();
  require_sharded("on_slice_ready()");
  if (update) require_updates_can_be_early("on_slice_ready()");
  require_not_in_step("on_slice_ready()", "some of its slices may be through; call it between steps");
  BucketReady each;
  if (update) {
    may_forget_updates_ = false;
    each = [this, update = std::move(update)](ReducedBucket const& bucket) {
      values_->update(bucket.index, update, bucket.stream);
      slices_updated(bucket);
    };
  }
  updates_.use("on_slice_ready()", std::move(each));
  if (state_.step.number > 0) choose_queues();
}

// Its new values travel with the next bucket, or at once if there is none.
void Reducer::slices_updated(ReducedBucket const& bucket) {
  values_->updated(bucket.index);
  if (state_.step.state != StepState::tail_sent) return;
  // Also of lanes that had their last bucket before the step's last one.
  for (std::size_t l = 0; l < state_.lanes.size(); ++l) gather(l, *updates_.streams()[l]);
}

void Reducer::gather(std::size_t l, Stream& updates) {
  if (!values_->has_updated(l)) return;
  state_.lanes[l].comm_stream->wait(updates);
  state_.lanes[l].communicator->group([&] { values_->gather(l); });
}

void Reducer::update_slices(SliceReady const& update) {
  Turn const turn(mutex_);
  require_usable();
  require_sharded("update_slices()");
  require(update != nullptr, "update_slices(): expected what updates a slice");
  require_between_steps("update_slices()");
  if (updates_.is_used()) {
    throw Error(ErrorCode::invalid_state,
                "update_slices(): on_slice_ready() has updated them already in the step; use one of the two");
  }
  if (state_.step.is_recorded()) {
    if (recorder_.steps() != 1 || !recorder_.note_update()) {
      throw Error(ErrorCode::invalid_state,
                  "update_slices() in a recorded step: expected one call, behind its synchronize()");
    }
  } else {
    if (slices_updated_ == state_.step.number) {
      throw Error(ErrorCode::invalid_state,
                  state_.step.number == 0
                      ? text("update_slices() before the first synchronised step: there are no averages")
                      : text("update_slices() twice after synchronised step ", state_.step.number - 1,
                             ": its averages are in the values already"));
    }
    refuse_capture();
    slices_updated_ = state_.step.number;
  }
  may_forget_updates_ = false;
  or_fail([&] {
    for (ReducerLane const& lane : state_.lanes) lane.comm_stream->expect_wait();
    for (std::size_t b = 0; b < state_.buckets.count(); ++b) {
      std::size_t const l = state_.buckets.lane(b);
      ReducerLane const& lane = state_.lanes[l];
      call_program("what update_slices() was given", b, state_.step,
                   [&] { values_->update(b, update, *lane.compute_stream); });
      values_->updated(b);
      if (values_->fill_a_gather(l)) gather(l, *lane.compute_stream);
    }
    for (std::size_t l = 0; l < state_.lanes.size(); ++l) gather(l, *state_.lanes[l].compute_stream);
    for (ReducerLane const& lane : state_.lanes) lane.compute_stream->wait(*lane.comm_stream);
  });
}

// A program may skip steps, but so many from the first one on only while a loss scale falls. No warning
// comes while steps are flagged, so the last one is looked at: on the host, which waits. In a program that
// updates, nothing is.
void Reducer::warn_of_no_updates() {
  constexpr std::uint64_t kFirstSteps = 8;
  if (state_.step.number < kFirstSteps || state_.step.is_recorded()) return;
  if (state_.ranks[0] != state_.ranks.self()) return;
  if (parts_.checks && !parts_.checks->nonfinite_gradients().empty()) return;
  may_forget_updates_ = false;
  log(LogLevel::warning,
      text("Options::sharding of ", state_.ranks.name(),
           ": expected an update behind a synchronised step, found none behind the first ",
           state_.step.number,
           ", so no parameter has changed. Give on_slice_ready() the update once, or call update_slices() "
           "after each synchronize(). If all of these steps were skipped on purpose, all is well"));
}

}  // namespace ddp
