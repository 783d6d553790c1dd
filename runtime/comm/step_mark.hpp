// What ranks compare of the operation that begins a training step.
#pragma once

#include <cstdint>

namespace ddp {

/// What a program has done since this rank's last step: two pairs of bits. One bit of a pair is set, or none
/// if the answer is not known. Ranks with different answers are at different places of their loops. A fifth
/// bit tells of the last step itself.
struct SinceLastStep {
  std::uint8_t bits = 0;  ///< parameters were changed: 1, were not: 2; gradients were cleared: 4, were not: 8
  static constexpr std::uint8_t kLeftOut = 16;  ///< the last step has left a parameter out
  static constexpr unsigned kBits = 5;

  /// Where both answers are known.
  [[nodiscard]] static constexpr SinceLastStep of(bool changed, bool cleared) noexcept {
    return {static_cast<std::uint8_t>((changed ? 1U : 2U) | (cleared ? 4U : 8U))};
  }
  [[nodiscard]] constexpr bool left_out() const noexcept { return (bits & kLeftOut) != 0; }
  /// Whether two ranks differ; `all`: the bits of all ranks, combined with |.
  [[nodiscard]] static constexpr bool differ(unsigned all) noexcept { return (all & all >> 1U & 5U) != 0; }
};

/// Which step an operation begins, if any, as one number, so that it fits into the record in which ranks
/// publish their calls.
struct StepMark {
  std::uint64_t word = 0;  ///< 0: none; otherwise 2 · (step + 1) + (weight ? 1 : 0) + (since << kSince)
  static constexpr unsigned kSince = 64 - SinceLastStep::kBits;  ///< where the bits of SinceLastStep begin

  /// Of step number `step`, in which this rank has or has not a weight.
  [[nodiscard]] static constexpr StepMark of(std::uint64_t step, bool weighted,
                                             SinceLastStep since = {}) noexcept {
    return {2 * (step + 1) + (weighted ? 1U : 0U) + (std::uint64_t{since.bits} << kSince)};
  }
  /// The word without SinceLastStep.
  [[nodiscard]] constexpr std::uint64_t which() const noexcept {
    return word << SinceLastStep::kBits >> SinceLastStep::kBits;
  }
  [[nodiscard]] constexpr bool begins() const noexcept { return word != 0; }               ///< Any step.
  [[nodiscard]] constexpr std::uint64_t step() const noexcept { return which() / 2 - 1; }  ///< If it does.
  [[nodiscard]] constexpr bool weighted() const noexcept { return word % 2 != 0; }         ///< The same.
  [[nodiscard]] constexpr SinceLastStep since() const noexcept {                           ///< The same.
    return {static_cast<std::uint8_t>(word >> kSince)};
  }
  /// The same step, with or without a weight. SinceLastStep is compared over all ranks instead.
  friend constexpr bool operator==(StepMark const& a, StepMark const& b) noexcept {
    return a.which() == b.which();
  }
};

}  // namespace ddp
