// Filling memory with random numbers, and how a CPU does it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ddp/core/dtype.hpp"
#include "device/random/philox.hpp"

namespace ddp {

/// Which numbers, and where they come from.
struct RandomFill {
  enum class Kind : std::uint8_t { uniform, normal } kind = Kind::uniform;
  RandomSource source;
  double first = 0;   ///< low, or the mean
  double second = 0;  ///< high, or the standard deviation
};

/// Fills `count` elements of host memory, in the calling thread.
void fill_random(void* data, std::size_t count, DType dtype, RandomFill const& how);

}  // namespace ddp
