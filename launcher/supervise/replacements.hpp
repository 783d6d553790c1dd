// Which lost ranks get a new process, and when (R26).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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
  /// never knew it; after a while if the last one ended before its first step too. A job that ends with its
  /// first loss, as during its start, gets none. Returns why there is none, for people; empty where there is
  /// one, and where none was asked for.
  [[nodiscard]] std::string lose(std::size_t place, RankOutcome const& lost, Clock::time_point now);
  /// The others have met; `first`, one of them, had ended `steps` steps then. They have gone on when it has
  /// ended another one, or after five seconds: while a process starts, CUDA makes the others on its host
  /// wait, which would slow them down while they connect their GPUs. Steps may be unknown.
  void others_met(Rank first, std::optional<std::uint64_t> steps, Clock::time_point now);
  /// The rank whose steps note_steps() is to be told.
  [[nodiscard]] std::optional<Rank> awaited() const;
  void note_steps(std::optional<std::uint64_t> steps, Clock::time_point now);
  /// When to look again: a step may be done, or the next one is due.
  [[nodiscard]] std::optional<Clock::time_point> next() const;
  /// A place whose new process is due; each once.
  [[nodiscard]] std::optional<std::size_t> take_due(Clock::time_point now);
  /// Nobody is left to take one in.
  void give_up() {
    waiting_.clear();
    meeting_.reset();
    due_.clear();
  }

  [[nodiscard]] int used() const noexcept { return used_; }
  [[nodiscard]] int most() const noexcept { return most_; }

 private:
  int most_;
  int used_ = 0;
  int without_step_ = 0;  ///< new processes in a row
  using Delays = std::map<std::size_t, Clock::duration>;
  Delays waiting_;  ///< until others have met
  struct Meeting {
    Rank first{};
    std::optional<std::uint64_t> steps{};  ///< that it had ended
    Clock::time_point by{};                ///< nothing waits longer for its step
    Clock::time_point next_look{};
    Delays waiting{};  ///< until then, and so long behind it
  };
  std::optional<Meeting> meeting_;
  std::map<std::size_t, Clock::time_point> due_;
};

}  // namespace ddp::launcher
