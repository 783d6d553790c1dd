// A tensor's layout in memory, for comparison.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// `strides` in a form that can be compared: row-major if there are none, and 1 for an axis with fewer than
/// two elements. Throws Error(invalid_argument), which begins with `what`, for gaps and overlaps.
[[nodiscard]] std::vector<std::size_t> layout_of(std::string const& what, TensorView const& value,
                                                 std::span<std::size_t const> strides);

}  // namespace ddp
