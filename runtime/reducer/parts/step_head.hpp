// The first message of a synchronised step (R12).
#pragma once

#include <cstdint>
#include <memory>

#include "reducer/lane.hpp"

namespace ddp {

/// The head of one lane: a sum over ranks, before the buckets on the lane's communication stream, which gives
/// each rank its share of the weights. The first operation of a step tells other ranks which step it begins:
/// the head, or, in a step without weights where operations are compared, a bucket.
class StepHead {
 public:
  [[nodiscard]] static std::unique_ptr<StepHead> make(ReducerLane const& lane);
  virtual ~StepHead() = default;
  StepHead(StepHead const&) = delete;
  StepHead& operator=(StepHead const&) = delete;

  /// Enqueues the head. `weight` below 0: none given. If ranks are in different steps, or differ in having a
  /// weight or in SinceLastStep, all of them get CommError(mismatch) from the stream or from settle(), or an
  /// earlier failure of the group.
  virtual void begin(std::uint64_t step, double weight, SinceLastStep since) = 0;
  /// begin() in two parts, for recorded steps of GPUs: record() is called while the step is recorded, and
  /// begin_replay() before each replay on `stream`. Of ranks that cannot compare their calls, a replay may
  /// run to its end before they learn of a difference: the next wait or step throws it.
  virtual void record(double /*weight*/) {}
  virtual void begin_replay(std::uint64_t /*step*/, double /*weight*/, Stream& /*stream*/) {}
  /// The host waits until it is certain that all ranks have begun this same step; throws CommError if not.
  /// Work that updates weights with the step's gradients is enqueued after this. Returns what
  /// CommunicatorBackend::settle_step() does.
  virtual SinceLastStep settle() = 0;
  /// This rank's weight over the sum of all, in memory of the device, valid once the head is done; 0 if all
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
