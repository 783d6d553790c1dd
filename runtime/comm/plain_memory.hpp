// Memory for communicators that are as fast with any.
#pragma once

#include "ddp/core/tensor.hpp"

namespace ddp {

/// Zeroed memory (u8) of `device`. Throws Error(out_of_memory), for any size that is not there.
[[nodiscard]] Tensor plain_memory(Bytes bytes, Device device);

}  // namespace ddp
