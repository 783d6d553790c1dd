// The small messages at both ends of a synchronised step (R12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ddp/reducer/reducer.hpp"

namespace ddp {

/// Head and tail words of one lane. The head, a sum over ranks, gives each its share of the weights, and is
/// the operation by which ranks tell each other that they begin this step; the tail tells which parameters
/// were used. Neither needs a round trip of its own: both are operations on the lane's communication stream,
/// in front of and behind the buckets. The words lie in memory of the lane's device.
class ControlWords {
 public:
  /// `every_rank`: the tail keeps every rank's bitmap, not just what all of them have in common.
  [[nodiscard]] static std::unique_ptr<ControlWords> make(ReducerLane const& lane, std::size_t parameters,
                                                          bool every_rank);
  virtual ~ControlWords() = default;
  ControlWords(ControlWords const&) = delete;
  ControlWords& operator=(ControlWords const&) = delete;

  /// Enqueues the head. `weight` below 0: none given. Ranks in other steps, or of which only some have a
  /// weight, get CommError(mismatch) from the stream or from settle(), all of them.
  virtual void begin(std::uint64_t step, double weight) = 0;
  /// The host waits until it is certain that all ranks have begun this step, alike; throws CommError if not.
  /// Whatever changes weights by the step's gradients is enqueued behind it.
  virtual void settle() = 0;
  /// This rank's weight over the sum of all, in memory of the device, from when the head is through; 0 if all
  /// weights are 0.
  [[nodiscard]] virtual double const& factor() const noexcept = 0;

  /// Enqueues the tail: `used` has one byte a parameter, 0 or 1. May be called inside a group.
  void finish(std::span<std::uint8_t const> used);
  /// The host waits until the last tail is through; then the following answer for it.
  void fetch();
  /// Whether any rank used `parameter`.
  [[nodiscard]] bool used_by_any(std::size_t parameter) const noexcept { return any_[parameter] != 0; }
  /// With every_rank: whether `rank` used `parameter`.
  [[nodiscard]] bool used_by(std::size_t rank, std::size_t parameter) const noexcept {
    return all_[rank * parameters_ + parameter] != 0;
  }

 protected:
  // Where the words lie: `used` and `any` a byte a parameter; `all` that of every rank.
  struct Memory {
    TensorView used;
    TensorView any;
    TensorView all;
  };

  ControlWords(ReducerLane const& lane, std::size_t parameters, bool every_rank);
  [[nodiscard]] ReducerLane const& lane() const noexcept { return lane_; }

  [[nodiscard]] virtual Memory memory() noexcept = 0;
  virtual void write_used(std::span<std::uint8_t const> used) = 0;

 private:
  ReducerLane lane_;
  std::size_t parameters_;
  bool every_rank_;
  bool fetched_ = true;
  std::vector<std::uint8_t> any_;  // as fetched: or over ranks
  std::vector<std::uint8_t> all_;  // as fetched: every rank's, if kept
};

namespace cuda {
/// For a lane of a GPU.
[[nodiscard]] std::unique_ptr<ControlWords> make_control_words(ReducerLane const& lane,
                                                               std::size_t parameters, bool every_rank);
}  // namespace cuda

}  // namespace ddp
