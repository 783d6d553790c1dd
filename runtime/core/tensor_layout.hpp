// How a tensor lies in its memory, for comparison.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// `strides` as they are compared: those of row-major if there are none, and 1 for an axis along which there
/// are no neighbours. Throws Error(invalid_argument), with `what` it is, for a layout with gaps or overlaps.
[[nodiscard]] std::vector<std::size_t> layout_of(std::string const& what, TensorView const& value,
                                                 std::span<std::size_t const> strides);

}  // namespace ddp
