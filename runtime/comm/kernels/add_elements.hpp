// Adding up elements that one stream's device reaches.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "ddp/core/dtype.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// What is added at once, so that memory is read once.
struct Addends {
  static constexpr std::size_t kMost = 8;
  std::array<void const*, kMost> data{};
  std::size_t size = 0;
};

/// to[count] += the sum of `from`, on `stream`, in the order of `from`; 16-bit floats in float, rounded once
/// for every Addends::kMost. `dtype` is reducible. All memory is the stream's device's, or such as that
/// device reaches; it lives until the stream is through, and does not overlap.
void add_elements(void* to, std::span<void const* const> from, std::size_t count, DType dtype,
                  Stream& stream);

}  // namespace ddp
