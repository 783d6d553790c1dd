#include "device/stream/event_clock.hpp"

#include <cmath>
#include <utility>

namespace ddp {

using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int kReadings = 5;
// A GPU's event times are floats of milliseconds: after a second they are still exact to 0.1 us.
constexpr double kLongestMs = 1000;
// Quartz clocks differ by less; what differs by more was not measured well.
constexpr double kLargestDrift = 1e-3;

EventClock::EventClock(Device device)
    : stream_(make_comm_stream(device)), base_(device), probe_(device), best_(device) {
  base_.record(*stream_);
  stream_->synchronize();
  compare();
}

void EventClock::compare() {
  auto shortest = Clock::duration::max();
  Clock::time_point host;
  for (int i = 0; i < kReadings; ++i) {
    auto const before = Clock::now();
    probe_.record(*stream_);
    stream_->synchronize();
    auto const after = Clock::now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    host = before + shortest / 2;
    std::swap(probe_, best_);
  }
  double const device_ms = base_ms_ + Event::milliseconds(base_, best_);
  if (start_ == Clock::time_point{}) {
    std::swap(base_, best_);
    start_ = host;
  } else if (device_ms > kLongestMs) {
    double const ratio = Milliseconds(host - start_).count() / device_ms;
    if (std::abs(ratio - 1) < kLargestDrift) host_per_device_ = ratio;
  }
}

EventClock::Clock::time_point EventClock::time_of(Event& event) {
  double const since_base = Event::milliseconds(base_, event);
  double const device_ms = base_ms_ + since_base;
  if (since_base > kLongestMs) {
    std::swap(base_, event);
    base_ms_ = device_ms;
  }
  return start_ + std::chrono::duration_cast<Clock::duration>(Milliseconds(device_ms * host_per_device_));
}

}  // namespace ddp
