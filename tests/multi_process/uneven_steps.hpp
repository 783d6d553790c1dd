// What tests of uneven and of spoilt steps have in common.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "support/ranks/multi_process.hpp"

namespace ddp::testing {

inline std::vector<std::size_t> const kCounts{1500, 3, 700};  // elements of the parameters
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

[[nodiscard]] inline int me() { return world().rank().value(); }
/// Rank r has data for 1 + 2r steps.
[[nodiscard]] inline int steps_of(int rank) { return 1 + 2 * rank; }

}  // namespace ddp::testing
