// Memory of any device.
#pragma once

#include "ddp/core/tensor.hpp"

namespace ddp {

/// Zeroed memory of `device`, ready for any stream. On a GPU it comes from a stream-ordered pool of this
/// process; its last owner must go only when no stream uses it any more. Throws Error(out_of_memory) with
/// what was asked for and what is free.
[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype, Device device);

/// Zeroed host memory that GPUs copy from and to without a detour: pinned, where there are GPUs.
[[nodiscard]] Tensor pinned_zeros(Shape const& shape, DType dtype);

}  // namespace ddp
