// Which parameters ranks have used in a step (R7), and what else goes with the step's last message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "reducer/parts/rank_flags.hpp"
#include "reducer/parts/rank_weights.hpp"
#include "reducer/parts/step_part.hpp"

namespace ddp {

/// The last message of a step, on the lane of its last bucket: a byte for each parameter, and an adapter's
/// flags.
class UsedParameters final : public StepPart {
 public:
  using TellFlags = std::function<void(std::span<std::uint8_t> flags)>;

  /// `refuses`: a step in which a rank leaves a parameter out throws on every rank. `weights` must outlive
  /// this object.
  UsedParameters(ReducerState const& of, RankWeights const& weights, bool refuses);

  /// At the end of a step: what this rank, if it had data, has left out, ascending.
  [[nodiscard]] std::vector<std::size_t> left_out() const;
  /// From now on CPUs tell each other over `lane` too, so that by_any() need not wait for a GPU.
  void tell_over(ReducerLane const& lane);
  /// Whether any rank used `parameter` in the last step. The host waits.
  [[nodiscard]] bool by_any(std::size_t parameter);
  /// u8[parameters] of the last step, in memory of the device whose gradients are sent last.
  [[nodiscard]] TensorView words() const { return sent_[answering_lane_].words(); }
  /// A recorded step was enqueued again.
  void was_sent() noexcept {
    sent_[answering_lane_].was_sent();
    cpus_know_ = false;
  }
  /// From now on `flags` more bytes, which `say` writes, go with the message.
  void carry(std::size_t flags, TellFlags say);
  /// Which of these any rank set: between CPUs in the last step, on a GPU in the step before.
  [[nodiscard]] std::span<std::uint8_t const> flags();

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::string why_not_recorded() const override;
  [[nodiscard]] bool may_refuse() const override { return refuses_; }
  void head() override;
  void tail() override;
  void verdict() override;

 private:
  void fetch_flags();

  RankWeights const& weights_;
  bool refuses_;
  std::vector<RankFlags> sent_;       // by lane
  std::optional<RankFlags> told_;     // between CPUs
  bool cpus_know_ = false;            // the last step was told so
  std::vector<std::uint8_t> exempt_;  // what an exempt rank sends
  TellFlags say_;
  std::vector<std::uint8_t> flags_;
  std::size_t answering_lane_ = 0;  // with the last message that was sent: new buckets may end on another one
};

}  // namespace ddp
