// When an event was reached, in the host's time.
#pragma once

#include <chrono>
#include <memory>

#include "ddp/device/event.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Maps events of one device to the host's steady clock, so that streams of several devices and hosts can be
/// shown on one timeline: accurate to some microseconds right after compare(), and relative to each other as
/// accurate as the device's clock. One thread at a time.
class EventClock {
 public:
  using Clock = std::chrono::steady_clock;  ///< The host's.

  /// Compares the two clocks.
  explicit EventClock(Device device);

  /// Compares the clocks again, to correct for their drift. The host waits a few times for a stream of this
  /// clock's own, less than a millisecond in all. Not meant for steps that are timed.
  void compare();

  /// When `event`, which is of this device and has been reached, was reached. The answers stay exact, however
  /// long it runs, if events are passed in roughly the order in which they were reached. Afterwards the event
  /// may be recorded again, but not be passed again.
  [[nodiscard]] Clock::time_point time_of(Event& event);

 private:
  std::unique_ptr<Stream> stream_;
  Event base_;          // device times are measured from here,
  double base_ms_ = 0;  // which is so long after the first comparison
  Event probe_;
  Event best_;
  Clock::time_point start_;  // the first comparison
  double host_per_device_ = 1;
};

}  // namespace ddp
