// The first message of a synchronised step (R12).
#pragma once

#include <cstdint>
#include <memory>

#include "ddp/reducer/reducer.hpp"

namespace ddp {

/// Of one lane. A sum over ranks, in front of the buckets on the lane's communication stream: it gives each
/// rank its share of the weights, and is the operation by which ranks tell each other that they begin this
/// step. So neither needs a round trip of its own.
class StepHead {
 public:
  [[nodiscard]] static std::unique_ptr<StepHead> make(ReducerLane const& lane);
  virtual ~StepHead() = default;
  StepHead(StepHead const&) = delete;
  StepHead& operator=(StepHead const&) = delete;

  /// Enqueues the head. `weight` below 0: none given. Ranks in other steps, or of which only some have a
  /// weight, get CommError(mismatch) from the stream or from settle(), all of them, or the failure of the
  /// group that came first.
  virtual void begin(std::uint64_t step, double weight) = 0;
  /// The host waits until it is certain that all ranks have begun this step, alike; throws CommError if not.
  /// Whatever changes weights by the step's gradients is enqueued behind it.
  virtual void settle() = 0;
  /// This rank's weight over the sum of all, in memory of the device, from when the head is through; 0 if all
  /// weights are 0.
  [[nodiscard]] virtual double const& factor() const noexcept = 0;

 protected:
  explicit StepHead(ReducerLane const& lane) : lane_(lane) {}
  [[nodiscard]] ReducerLane const& lane() const noexcept { return lane_; }

 private:
  ReducerLane lane_;
};

namespace cuda {
/// For a lane of a GPU.
[[nodiscard]] std::unique_ptr<StepHead> make_step_head(ReducerLane const& lane);
}  // namespace cuda

}  // namespace ddp
