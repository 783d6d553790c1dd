// How much a plan of scatter or gather moves.
#pragma once

#include <cstddef>
#include <vector>

#include "data_parallel/scatter_plan.hpp"

namespace ddp::testing {

[[nodiscard]] inline std::size_t bytes_of(std::vector<BlockCopies> const& copies) {
  std::size_t bytes = 0;
  for (BlockCopies const& of_one : copies) {
    for (BlockCopy const& copy : of_one) bytes += copy.rows * copy.width;
  }
  return bytes;
}

}  // namespace ddp::testing
