// How an average is taken where each rank adds in the element type.
#pragma once

#include <bit>
#include <cstddef>

namespace ddp {

/// Each rank's elements are multiplied by `before`, then added up; the sum is multiplied by `after`.
///
/// 1/n rounded to 16 bits would be off by up to 0.2 %, the same on every element. A power of two is exact,
/// and small enough that the sum cannot overflow where the average does not; what is missing to 1/n lies
/// between 1 and 2, and is multiplied in f32.
struct AverageFactors {
  double before = 1;
  double after = 1;
};

[[nodiscard]] constexpr AverageFactors average_factors(std::size_t ranks) noexcept {
  auto const power = static_cast<double>(std::bit_ceil(ranks));
  return {1 / power, power / static_cast<double>(ranks)};
}

}  // namespace ddp
