// How much each rank's gradients count in a step (R4), and the step's first message, which tells it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "reducer/parts/step_head.hpp"
#include "reducer/parts/step_part.hpp"

namespace ddp {

/// A step's weight on this rank, the heads of all lanes, and how buckets are reduced by them.
class RankWeights final : public StepPart {
 public:
  /// What a step without weights computes, and how ranks without data count in it.
  enum class Without {
    average,       ///< over all ranks
    sum,           ///< over all ranks
    live_average,  ///< over ranks that have data
  };
  /// `allowed`: whether the program may give weights.
  RankWeights(ReducerState const& of, Without without, bool allowed);

  /// The weight of the next step. Throws Error(invalid_argument) for a number that cannot be a weight.
  void set(double weight);
  /// What this rank has done before the next step.
  void since_last_step(SinceLastStep since) noexcept { since_ = since; }
  [[nodiscard]] std::optional<double> const& given() const noexcept { return weight_; }
  /// For buckets of a lane, behind the head.
  [[nodiscard]] ReduceOp op(std::size_t lane) const;
  /// This rank's weight over the sum of all, in memory of the lane's device, valid behind the head; null
  /// without weights.
  [[nodiscard]] double const* factor(std::size_t lane) const noexcept {
    return weight_ ? &heads_[lane]->factor() : nullptr;
  }
  /// This rank's last step has left a parameter out; the begin of the next one tells the others.
  void say_left_out() noexcept { left_out_ = true; }
  /// The host waits until it is certain that all ranks have begun this same step. Returns whether any of them
  /// has said so, where their CPUs see each other's calls.
  bool settle();
  /// In front of a replay, on the first lane's compute stream.
  void begin_replay();
  /// The step is over.
  void forget() noexcept { weight_.reset(); }

  [[nodiscard]] std::string describe() const override;
  void begin() override;
  void head() override;

 private:
  Without without_;
  bool allowed_;
  std::vector<std::unique_ptr<StepHead>> heads_;  // by lane
  std::optional<double> weight_;
  SinceLastStep since_;
  bool left_out_ = false;
};

}  // namespace ddp
