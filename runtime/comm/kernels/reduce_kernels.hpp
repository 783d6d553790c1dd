// Reducing the same elements of several ranks, on the CPU.
#pragma once

#include <cstddef>
#include <span>

#include "ddp/comm/reduce_op.hpp"
#include "ddp/core/dtype.hpp"

namespace ddp {

/// One rank's elements, and the factor that they are multiplied with (1 for none).
struct ReduceSource {
  void const* data = nullptr;
  double factor = 1.0;
};

/// Each of `destinations` = the reduction of `sources`, `count` elements. Sources are combined in their
/// order, 16-bit floats in float with one rounding at the end, so the result is the same wherever it is
/// computed. `dtype` is reducible. Of NaN and numbers the minimum and the maximum are NaN. A destination may
/// be a source; otherwise they must not overlap. `scaled`: whether factors count at all.
void reduce_elements(std::span<void* const> destinations, std::span<ReduceSource const> sources,
                     std::size_t count, DType dtype, ReduceOp::Kind kind, bool scaled);

}  // namespace ddp
