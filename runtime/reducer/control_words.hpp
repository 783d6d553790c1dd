// The small messages at both ends of a synchronised step (R12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/reducer/reducer.hpp"

namespace ddp {

/// Head and tail words of one lane. The head, a sum over ranks, tells whether all ranks are in the same step
/// and gives each its share of the weights; the tail tells which parameters were used. Neither needs a round
/// trip of its own: both are operations on the lane's communication stream, in front of and behind the
/// buckets.
class ControlWords {
 public:
  /// `every_rank`: the tail keeps every rank's bitmap, not just what all of them have in common.
  ControlWords(ReducerLane lane, std::size_t parameters, bool every_rank);
  ControlWords(ControlWords const&) = delete;
  ControlWords& operator=(ControlWords const&) = delete;

  /// Enqueues the head. `weight` below 0: none given.
  void begin(std::uint64_t step, double weight);
  /// This rank's weight over the sum of all, from when the head is through; 0 if all weights are 0.
  [[nodiscard]] double const& factor() const noexcept { return factor_; }

  /// Enqueues the tail: `used` has one byte a parameter. May be called inside a group.
  void finish(std::span<std::uint8_t const> used);
  /// After the tail is through: whether any rank used `parameter`.
  [[nodiscard]] bool used_by_any(std::size_t parameter) const noexcept { return any_[parameter] != 0; }
  /// After the tail is through, with every_rank: whether `rank` used `parameter`.
  [[nodiscard]] bool used_by(std::size_t rank, std::size_t parameter) const noexcept {
    return all_[rank * used_.size() + parameter] != 0;
  }
  /// After the tail is through, with every_rank: folds the bitmaps into used_by_any().
  void fold() noexcept;

 private:
  // Sums over ranks. Small integers, so exact in a double.
  struct Head {
    double weight = 0;
    double has_weight = 0;
    double step = 0;
    double step_squared = 0;  // tells 1 + 3 from 2 + 2
  };
  void check_head();

  ReducerLane lane_;
  Head head_;
  double weight_ = -1;
  double factor_ = 1;
  std::uint64_t step_ = 0;
  std::vector<std::uint8_t> used_;  // this rank's
  std::vector<std::uint8_t> any_;   // or over ranks
  std::vector<std::uint8_t> all_;   // every rank's, if kept
};

}  // namespace ddp
