#include "reducer/statistics/step_times.hpp"

#include <algorithm>
#include <utility>

namespace ddp {

void StepTimes::make_room(std::span<std::size_t const> bucket_lanes) {
  bucket_lanes_.assign(bucket_lanes.begin(), bucket_lanes.end());
  slots_.clear();
  oldest_ = next_ = 0;
  measured_before_ = false;
  slots_.reserve(kSlots);
  for (std::uint64_t i = 0; i < kSlots; ++i) slots_.push_back(make_slot());
  recorded_.emplace(make_slot());
  unread_.emplace(make_slot());
}

StepTimes::Slot StepTimes::make_slot() const {
  Slot slot(lanes_[0].device);
  for (std::size_t const lane : bucket_lanes_) {
    slot.begun.emplace_back(lanes_[lane].device);
    slot.done.emplace_back(lanes_[lane].device);
  }
  return slot;
}

void StepTimes::begin_forward() {
  if (!is_recording_ && is_full()) return;
  mark(now().forward, compute_stream());
  now().has_forward = true;
}

void StepTimes::begin_step() {
  measures_ = is_recording_ || !is_full();
  if (!measures_) return;
  now().follows = measured_before_;
  now().replayed = false;
  mark(now().first, compute_stream());
}

void StepTimes::bucket_begun(std::size_t bucket) {
  if (!measures_) return;
  std::size_t const lane = bucket_lanes_[bucket];
  // Before the lane's first bucket, in the head of the step, the communication stream waits for late ranks.
  // So that bucket is marked on the compute stream. For others the communication stream is cheaper.
  bool const is_first = std::find(bucket_lanes_.begin(), bucket_lanes_.end(), lane) ==
                        bucket_lanes_.begin() + static_cast<std::ptrdiff_t>(bucket);
  mark(now().begun[bucket], is_first ? *lanes_[lane].compute_stream : *lanes_[lane].comm_stream);
}

void StepTimes::bucket_done(std::size_t bucket) {
  if (measures_) mark(now().done[bucket], *lanes_[bucket_lanes_[bucket]].comm_stream);
}

void StepTimes::begin_wait() {
  if (measures_) mark(now().wait, compute_stream());
}

void StepTimes::end_step(StepStatistics counts) {
  if (is_recording_) {
    mark(recorded_->end, compute_stream());
    recorded_->counts = std::move(counts);
    return;
  }
  measured_before_ = std::exchange(measures_, false);
  if (!measured_before_) return;
  Slot& now = slot(next_++);
  now.end.record(compute_stream());
  now.counts = std::move(counts);
}

StepTimes::Recorded StepTimes::end_recording() {
  is_recording_ = measures_ = false;
  return {std::exchange(recorded_->has_forward, false), std::move(recorded_->counts)};
}

void StepTimes::begin_replay(RecordedGraph& graph, Recorded const& recorded) {
  measures_ = !is_full();
  Slot& to = measures_ ? slot(next_) : *unread_;
  to.follows = measured_before_;
  to.replayed = true;
  if (recorded.has_forward) {  // otherwise begin_forward() may have come before the replay
    to.has_forward = true;
    graph.set_event(recorded_->forward, to.forward);
  }
  graph.set_event(recorded_->first, to.first);
  graph.set_event(recorded_->wait, to.wait);
  graph.set_event(recorded_->end, to.end);
  for (std::size_t b = 0; b < bucket_lanes_.size(); ++b) {
    graph.set_event(recorded_->begun[b], to.begun[b]);
    graph.set_event(recorded_->done[b], to.done[b]);
  }
}

void StepTimes::end_replay(Recorded const& recorded, std::uint64_t step) {
  measured_before_ = std::exchange(measures_, false);
  if (!measured_before_) return;
  Slot& now = slot(next_++);
  now.over.record(compute_stream());
  now.counts = recorded.counts;
  now.counts.step = step;
}

bool StepTimes::reached(Slot const& slot) const {
  if (slot.replayed) return slot.over.reached();
  // Where the program began to compute on another stream in the step, they are not behind one another.
  for (Event const* const event : {&slot.first, &slot.wait, &slot.end}) {
    if (!event->reached()) return false;
  }
  if (slot.has_forward && !slot.forward.reached()) return false;
  // Only its own communication stream is certain to be behind the first lane's compute stream.
  return lanes_.size() == 1 ||
         std::ranges::all_of(slot.done, [](Event const& done) { return done.reached(); });
}

std::optional<StepStatistics> StepTimes::next() {
  if (oldest_ == next_ || !reached(slot(oldest_))) return std::nullopt;
  Slot& now = slot(oldest_);
  StepStatistics found = std::move(now.counts);
  Event const& end_before = slot(oldest_ + kSlots - 1).end;
  if (now.follows) found.step_ms = Event::milliseconds(end_before, now.end);
  if (std::exchange(now.has_forward, false)) {
    found.forward_ms = Event::milliseconds(now.forward, now.first);
  } else if (now.follows) {
    found.forward_ms = Event::milliseconds(end_before, now.first);
  }
  found.backward_ms = Event::milliseconds(now.first, now.wait);
  found.communication_ms = communication(now);
  found.exposed_ms = Event::milliseconds(now.wait, now.end);
  ++oldest_;
  return found;
}

double StepTimes::communication(Slot const& slot) const {
  double sum = 0;
  for (std::size_t b = 0; b < bucket_lanes_.size(); ++b)
    sum += Event::milliseconds(slot.begun[b], slot.done[b]);
  return sum;
}

}  // namespace ddp
