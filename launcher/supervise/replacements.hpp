// Which lost ranks get a new process, and when (R26).
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/outcome.hpp"

namespace ddp::launcher {

/// Pure, except that it remembers earlier losses.
class Replacements {
 public:
  using Clock = RankOutcome::Clock;
  static constexpr int kMostWithoutStep = 2;  ///< new processes in a row

  /// So many in all.
  explicit Replacements(int most) : most_(most) {}

  /// `lost`, at that place, may get a new process: when the others have gone on without it, or now if they
  /// never knew it; after a while if the last one ended before its first step too. Returns why there is none,
  /// for people; empty where there is one, and where none was asked for.
  [[nodiscard]] std::string lose(std::size_t place, RankOutcome const& lost, Clock::time_point now);
  /// The others have gone on. A job that ends with its first loss, as during its start, gets no new process.
  void others_went_on(Clock::time_point now);
  /// When the next one is due.
  [[nodiscard]] std::optional<Clock::time_point> next() const;
  /// A place whose new process is due; each once.
  [[nodiscard]] std::optional<std::size_t> take_due(Clock::time_point now);
  /// Nobody is left to take one in.
  void give_up() {
    waiting_.clear();
    due_.clear();
  }

  [[nodiscard]] int used() const noexcept { return used_; }
  [[nodiscard]] int most() const noexcept { return most_; }

 private:
  int most_;
  int used_ = 0;
  int without_step_ = 0;                            ///< new processes in a row
  std::map<std::size_t, Clock::duration> waiting_;  ///< for others_went_on(), and so long then
  std::map<std::size_t, Clock::time_point> due_;
};

}  // namespace ddp::launcher
