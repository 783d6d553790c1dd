// Every wait has a deadline.
#pragma once

#include <chrono>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// A point in time after which a wait gives up. Copyable, immutable.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;     ///< Never set back.
  using Duration = std::chrono::milliseconds;  ///< What waits are given.

  /// The point of time `duration` from now.
  [[nodiscard]] static Deadline after(Duration duration) {
    return Deadline(Clock::now() + duration, duration);
  }
  [[nodiscard]] bool expired() const { return Clock::now() >= point_; }     ///< Whether it has passed.
  [[nodiscard]] Clock::time_point time() const noexcept { return point_; }  ///< The point of time.
  /// Never negative.
  [[nodiscard]] Duration remaining() const {
    auto const left = std::chrono::ceil<Duration>(point_ - Clock::now());
    return left.count() > 0 ? left : Duration{0};
  }
  /// The duration it was made with: for messages ("no answer within 10 s").
  [[nodiscard]] Duration allowed() const noexcept { return allowed_; }

 private:
  Deadline(Clock::time_point point, Duration allowed) : point_(point), allowed_(allowed) {}
  Clock::time_point point_;
  Duration allowed_;
};

/// For messages: text(seconds(timeout), " s").
[[nodiscard]] inline double seconds(Deadline::Duration duration) {
  return static_cast<double>(duration.count()) / 1000.0;
}

}  // namespace ddp
