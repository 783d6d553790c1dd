// The time limit of a wait; time in which the process is stopped does not count.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "ddp/core/deadline.hpp"

namespace ddp {

/// For waits that poll. The process may be stopped meanwhile (Ctrl-Z, `scontrol suspend`, `docker pause`): of
/// the time between two polls at most kMostBetweenLooks counts. So a wait must poll more often than that. One
/// thread.
class PausingDeadline {
 public:
  using Clock = Deadline::Clock;
  static constexpr std::chrono::milliseconds kMostBetweenLooks{500};
  static constexpr std::chrono::milliseconds kLongestNap{100};

  explicit PausingDeadline(Deadline::Duration allowed, Clock::time_point now = Clock::now())
      : allowed_(Deadline::bounded(allowed)), last_look_(now) {}
  explicit PausingDeadline(Deadline deadline) : PausingDeadline(deadline.remaining()) {}

  /// How long the wait has lasted. Each call counts as a poll.
  Clock::duration waited(Clock::time_point now = Clock::now()) {
    waited_ += std::min<Clock::duration>(now - last_look_, kMostBetweenLooks);
    last_look_ = now;
    return waited_;
  }
  [[nodiscard]] bool ended() { return waited() >= allowed_; }
  /// How long the wait may sleep until the next poll. Never negative.
  [[nodiscard]] Deadline::Duration nap() {
    auto const left = std::chrono::ceil<Deadline::Duration>(allowed_ - waited());
    return std::clamp<Deadline::Duration>(left, Deadline::Duration{0}, kLongestNap);
  }
  /// Waits until ready() holds; `changed` is notified when it may. False if the time ran out first.
  template <class Ready>
  [[nodiscard]] bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Ready ready) {
    while (!changed.wait_for(lock, nap(), ready)) {
      if (ended()) return false;
    }
    return true;
  }

 private:
  Clock::duration allowed_;
  Clock::duration waited_{};
  Clock::time_point last_look_;
};

}  // namespace ddp
