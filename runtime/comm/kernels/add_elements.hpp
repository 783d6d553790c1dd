// Adding elements up, on the device of a stream.
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
/// for every Addends::kMost. `dtype` is reducible. The stream's device reaches all memory, which must stay
/// until the stream is done with it, and must not overlap.
void add_elements(void* to, std::span<void const* const> from, std::size_t count, DType dtype,
                  Stream& stream);

}  // namespace ddp
