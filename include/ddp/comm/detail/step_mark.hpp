// What ranks compare of the operation that begins a training step.
#pragma once

#include <cstdint>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// Which step an operation begins, if any, as one number, so that it fits into the record in which ranks
/// publish their calls.
struct StepMark {
  std::uint64_t word = 0;  ///< 0: begins none; otherwise 2 · (step + 1), and 1 more with a weight

  /// Of step number `step`, in which this rank has or has not a weight.
  [[nodiscard]] static constexpr StepMark of(std::uint64_t step, bool weighted) noexcept {
    return {2 * (step + 1) + (weighted ? 1U : 0U)};
  }
  [[nodiscard]] constexpr bool begins() const noexcept { return word != 0; }            ///< Any step.
  [[nodiscard]] constexpr std::uint64_t step() const noexcept { return word / 2 - 1; }  ///< If it begins one.
  [[nodiscard]] constexpr bool weighted() const noexcept { return word % 2 != 0; }      ///< The same.
  friend constexpr bool operator==(StepMark const&, StepMark const&) noexcept = default;  ///< Alike.
};

}  // namespace ddp
