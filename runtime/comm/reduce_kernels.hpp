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

/// Whether stores should go past the caches: right for messages far larger than those.
enum class Stores { cached, streaming };

/// Each of `destinations` = the reduction of `sources`, `count` elements. Sources are combined in their
/// order, 16-bit floats in float with one rounding at the end, so the result is the same wherever it is
/// computed. A destination may be a source; otherwise they must not overlap. `scaled`: whether factors count
/// at all.
void reduce_elements(std::span<void* const> destinations, std::span<ReduceSource const> sources,
                     std::size_t count, DType dtype, ReduceOp::Kind kind, bool scaled, Stores stores);

/// memcpy, past the caches if asked for.
void copy_bytes(void* destination, void const* source, std::size_t bytes, Stores stores);

/// Orders streaming stores before what is stored next. Call it before telling another rank.
void finish_streaming() noexcept;

}  // namespace ddp
