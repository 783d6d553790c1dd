// Every wait has a deadline.
#pragma once

#include <algorithm>
#include <chrono>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// A point in time after which a wait gives up. Copyable, immutable.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;     ///< Never set back.
  using Duration = std::chrono::milliseconds;  ///< What waits are given.

  /// A century: a longer wait is a wait for ever. The clock can count three.
  static constexpr Duration kLongest = std::chrono::hours(24) * 365 * 100;
  /// `duration`, at most kLongest: so the result can be multiplied, and added to any point of time.
  [[nodiscard]] static constexpr Duration bounded(Duration duration) {
    return std::clamp(duration, -kLongest, kLongest);
  }

  /// The point of time `duration` from now, or kLongest from now if that is sooner.
  [[nodiscard]] static Deadline after(Duration duration) {
    return Deadline(Clock::now() + bounded(duration), bounded(duration));
  }
  [[nodiscard]] bool expired() const { return Clock::now() >= point_; }     ///< Whether it has passed.
  [[nodiscard]] Clock::time_point time() const noexcept { return point_; }  ///< The point of time.
  /// Never negative.
  [[nodiscard]] Duration remaining() const {
    auto const left = std::chrono::ceil<Duration>(point_ - Clock::now());
    return left.count() > 0 ? left : Duration{0};
  }
  /// The duration with which it was made, for messages ("no answer within 10 s").
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
