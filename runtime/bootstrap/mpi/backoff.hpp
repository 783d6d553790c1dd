// Waiting for something that cannot wake a thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace ddp {

/// The pauses between looks: for `busy` it only yields, so that a quick answer is seen quickly; then it
/// sleeps, longer and longer up to `longest`, so that a long wait costs no core.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  Backoff(std::chrono::microseconds busy, std::chrono::microseconds longest)
      : busy_(busy), longest_(longest) {}

  /// Something happened: the next pauses are short again.
  void reset() {
    idle_since_ = Clock::now();
    sleep_ = kFirst;
  }
  void pause() {
    if (Clock::now() - idle_since_ < busy_) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 5 / 4, longest_);
  }

 private:
  static constexpr std::chrono::microseconds kFirst{20};
  std::chrono::microseconds busy_;
  std::chrono::microseconds longest_;
  std::chrono::microseconds sleep_ = kFirst;
  Clock::time_point idle_since_ = Clock::now();
};

}  // namespace ddp
