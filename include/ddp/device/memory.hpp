// Memory of any device, and how much of it this process has.
#pragma once

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace DDP_EXPORT ddp {

/// Zeroed memory of `device`, ready for any stream. On a GPU it comes from a stream-ordered pool of that
/// logical device; its last owner must go only when no stream uses it any more. Throws Error(not_found)
/// for a device that is not there; Error(out_of_memory) with what was asked for and what is free, and, if the
/// device has a limit (memory_limit()) that this would pass, with limit and use. Any thread.
[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype, Device device);
/// The same on default_device(): that of the innermost DeviceScope, cpu:0 outside of any.
[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype);

/// Zeroed host memory that GPUs copy from and to without a detour: pinned, where there are GPUs.
[[nodiscard]] Tensor pinned_zeros(Shape const& shape, DType dtype);

/// The values of `from` in new memory of `device`, also where they lie there already, copied on `stream`,
/// which is of one of the two devices, or of any CPU if both are CPUs. It waits for the stream before it
/// returns. Throws as zeros(). Tensor knows no devices' runtimes, so this is no member of it.
[[nodiscard]] Tensor to(TensorView const& from, Device device, Stream& stream);
/// The same on a stream of its own: for values that no stream is still writing, or that CUDA's default stream
/// writes.
[[nodiscard]] Tensor to(TensorView const& from, Device device);

/// What this process has of the memory of `device`, by zeros(). On a CPU nothing is kept, so what is reserved
/// is what is in use.
struct MemoryStats {
  Bytes in_use{0};    ///< by tensors that live, each rounded up to a whole number of kMemoryGranularity
  Bytes peak{0};      ///< the most that was in use since the start, or since reset_peak_memory_stats()
  Bytes reserved{0};  ///< what the pool holds, in use or not; the driver gives it memory in large pieces
};
[[nodiscard]] MemoryStats memory_stats(Device device);

/// What an allocation is rounded up to, as CUDA's pools do it, and for CPUs alike so that limits mean the
/// same.
inline constexpr Bytes kMemoryGranularity{512};

/// From now on MemoryStats::peak is the most that is in use from now on.
void reset_peak_memory_stats(Device device);

/// Gives the memory that the pool of `device` holds for later back to the driver. Waits for what has been
/// freed. On a CPU nothing is held, so nothing is done.
void empty_cache(Device device);

}  // namespace ddp
