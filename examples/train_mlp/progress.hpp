// What a person sees while training runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace train_mlp {

/// Where training stands, for one line.
struct Standing {
  std::size_t epoch = 0;  ///< from 1
  std::size_t epochs = 0;
  std::size_t step = 0;  ///< of this epoch, from 1
  std::size_t steps = 0;
  double loss = 0;  ///< mean over the epoch's samples so far, of all ranks
  double samples_per_second = 0;
  double seconds_left = 0;
};

/// "epoch  3/15  step   40/118  loss 0.2871  182345 samples/s  0:07 left", at most 79 characters for usual
/// numbers.
[[nodiscard]] std::string describe(Standing const& standing);

/// Shows progress on stdout. On a terminal a live line that ends with \r and is overwritten by the next; in a
/// pipe plain lines, at most one every few seconds. A finished epoch always gets a lasting line.
class Progress {
 public:
  enum class Mode {
    silent,  ///< for all ranks but 0
    plain,
    live,
  };
  /// live if stdout is a terminal, or if DDP_TERMINAL=1 says that it ends on one (ddp-launch sets it for
  /// ranks, whose stdout is a pipe); otherwise plain.
  [[nodiscard]] static Mode detect();

  explicit Progress(Mode mode, std::FILE* out = stdout) : mode_(mode), out_(out) {}

  /// To be called often: it decides whether there is something to print.
  void update(Standing const& standing);
  void finish_epoch(Standing const& standing, double test_accuracy);
  /// A line that stays.
  void print(std::string const& line);

 private:
  using Clock = std::chrono::steady_clock;
  Mode mode_;
  std::FILE* out_;
  std::size_t live_length_ = 0;  // of the live line that is to be overwritten
  Clock::time_point last_ = Clock::now();
};

}  // namespace train_mlp
