// What the device layer asks of CUDA. A build without CUDA has no devices, and throws Error(unsupported) for
// the rest (no_cuda.cpp).
#pragma once

#include <memory>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/stream.hpp"

namespace ddp::cuda {

[[nodiscard]] bool is_built() noexcept;

/// The visible GPUs, one entry each, by CUDA's number. Opens no context.
[[nodiscard]] std::vector<LogicalDevice> visible_devices();
[[nodiscard]] MemoryInfo memory_info(int visible);

/// The calling thread's current device, by CUDA's number.
[[nodiscard]] int current_device();
void set_current_device(int visible);

[[nodiscard]] std::unique_ptr<Stream> make_stream(Device device, bool for_communication);
[[nodiscard]] std::unique_ptr<Event::Mark> make_mark(Device device);

[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype, Device device);
[[nodiscard]] Tensor pinned_zeros(Shape const& shape, DType dtype);
[[nodiscard]] PoolUse pool_use(Device device);

void zero_fill(TensorView const& tensor, Stream& stream);
/// Between memory of the stream's device and itself or the host.
void copy(TensorView const& to, TensorView const& from, Stream& stream);

}  // namespace ddp::cuda
