// Work for a GPU whose end can be waited for.
#pragma once

#include "ddp/device/tensor_ops.hpp"

namespace ddp::testing {

/// Takes the GPU a few milliseconds if `memory` has 64 MiB.
inline void keep_busy(Tensor const& memory, Stream& stream) {
  for (int i = 0; i < 100; ++i) zero_fill(memory, stream);
}

}  // namespace ddp::testing
