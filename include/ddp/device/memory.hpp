// Memory of any device, and how much of it this process has.
#pragma once

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace DDP_EXPORT ddp {

/// Zeroed memory of `device`, ready for any stream. On a GPU it comes from a stream-ordered pool of that
/// logical device; its last owner may be destroyed only when no stream uses it any more. Throws
/// Error(not_found) for a device that is not there; Error(out_of_memory) with what was asked for and what is
/// free, and, if the allocation would exceed the device's limit (memory_limit()), with limit and use. Any
/// thread.
[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype, Device device);
/// The same on default_device(): that of the innermost DeviceScope, cpu:0 outside of any.
[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype);

/// Zeroed host memory; if there are GPUs it is pinned, so that they copy from and to it directly.
[[nodiscard]] Tensor pinned_zeros(Shape const& shape, DType dtype);

/// The values of `from` in new memory of `device`, even if they already lie there. They are copied on
/// `stream`, which is of one of the two devices, or of any CPU if both are CPUs. Waits for the stream before
/// it returns. Throws as zeros(). Not a member of Tensor, which does not depend on any device's runtime.
[[nodiscard]] Tensor to(TensorView const& from, Device device, Stream& stream);
/// The same on a new stream: for values that no stream is still writing, except CUDA's default stream.
[[nodiscard]] Tensor to(TensorView const& from, Device device);

/// How much memory of `device` this process has from zeros(). A CPU has no pool, so there reserved equals
/// in_use.
struct MemoryStats {
  Bytes in_use{0};    ///< by living tensors, each rounded up to a multiple of kMemoryGranularity
  Bytes peak{0};      ///< the most that was in use since the start, or since reset_peak_memory_stats()
  Bytes reserved{0};  ///< what the pool holds, in use or not; the driver gives it memory in large pieces
};
[[nodiscard]] MemoryStats memory_stats(Device device);

/// Allocations are rounded up to this: CUDA's pools do it, and on CPUs it is done too, so that limits mean
/// the same.
inline constexpr Bytes kMemoryGranularity{512};

/// Starts MemoryStats::peak again, at what is in use now.
void reset_peak_memory_stats(Device device);

/// Gives unused memory of the pool of `device` back to the driver. Waits until freed memory is really free.
/// Does nothing on a CPU, which has no pool.
void empty_cache(Device device);

}  // namespace ddp
