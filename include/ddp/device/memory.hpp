// Memory of any device.
#pragma once

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"

namespace DDP_EXPORT ddp {

/// Zeroed memory of `device`, ready for any stream. On a GPU it comes from a stream-ordered pool of this
/// process; its last owner must go only when no stream uses it any more. Throws Error(not_found) for a device
/// that is not there, Error(out_of_memory) with what was asked for and what is free.
[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype, Device device);
/// The same on default_device(): that of the innermost DeviceScope, cpu:0 outside of any.
[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype);

/// Zeroed host memory that GPUs copy from and to without a detour: pinned, where there are GPUs.
[[nodiscard]] Tensor pinned_zeros(Shape const& shape, DType dtype);

/// What this process has from the pool of the GPU behind `device`.
struct PoolUse {
  Bytes in_use{0};    ///< by tensors that live
  Bytes peak{0};      ///< the most that was in use
  Bytes reserved{0};  ///< what the pool holds, in use or not; the driver gives it memory in large pieces
};
[[nodiscard]] PoolUse pool_use(Device device);

}  // namespace ddp
