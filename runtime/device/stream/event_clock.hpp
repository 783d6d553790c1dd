// When an event was reached, in the host's time.
#pragma once

#include <chrono>
#include <memory>

#include "ddp/device/event.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Maps events of one device to the host's steady clock, so that streams of several devices and hosts stand
/// on one timeline: within some microseconds right after compare(), and as exact to each other as the
/// device's clock is. One thread at a time.
class EventClock {
 public:
  using Clock = std::chrono::steady_clock;  ///< The host's.

  /// Compares the two clocks.
  explicit EventClock(Device device);

  /// Compares the clocks again, to correct for what they drift: a few times the host waits for a stream of
  /// this clock's own, less than a millisecond. Not for steps that are timed.
  void compare();

  /// When `event`, of this device and reached, was reached. Asked in about the order in which events were
  /// reached, the answers stay exact however long that goes on. The event may then be recorded again, but is
  /// not asked again.
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
