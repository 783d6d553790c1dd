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
  for (std::uint64_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_.emplace_back(lanes_[0].device);
    for (std::size_t const lane : bucket_lanes_) {
      slot.begun.emplace_back(lanes_[lane].device);
      slot.done.emplace_back(lanes_[lane].device);
    }
  }
}

void StepTimes::begin_forward() {
  if (is_full()) return;
  slot(next_).forward.record(compute_stream());
  slot(next_).has_forward = true;
}

void StepTimes::begin_step() {
  measures_ = !is_full();
  if (!measures_) return;
  slot(next_).follows = measured_before_;
  slot(next_).first.record(compute_stream());
}

void StepTimes::bucket_begun(std::size_t bucket) {
  if (!measures_) return;
  std::size_t const lane = bucket_lanes_[bucket];
  // Where ranks come late, the communication stream waits for them before the lane's first bucket, in the
  // head of the step. An event costs a computing stream more than this one.
  bool const is_first = std::find(bucket_lanes_.begin(), bucket_lanes_.end(), lane) ==
                        bucket_lanes_.begin() + static_cast<std::ptrdiff_t>(bucket);
  slot(next_).begun[bucket].record(is_first ? *lanes_[lane].compute_stream : *lanes_[lane].comm_stream);
}

void StepTimes::bucket_done(std::size_t bucket) {
  if (measures_) slot(next_).done[bucket].record(*lanes_[bucket_lanes_[bucket]].comm_stream);
}

void StepTimes::begin_wait() {
  if (measures_) slot(next_).wait.record(compute_stream());
}

void StepTimes::end_step(StepStatistics counts) {
  measured_before_ = std::exchange(measures_, false);
  if (!measured_before_) return;
  Slot& now = slot(next_++);
  now.end.record(compute_stream());
  now.counts = std::move(counts);
}

bool StepTimes::reached(Slot const& slot) const {
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
