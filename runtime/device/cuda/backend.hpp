// What the device layer asks of CUDA. A build without CUDA has no devices, and throws Error(unsupported) for
// the rest (not_built.cpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/stream.hpp"
#include "device/memory/memory_place.hpp"
#include "device/stream/event_mark.hpp"

namespace DDP_EXPORT ddp {
struct Copy;              // ddp/device/tensor_ops.hpp
struct DeviceProperties;  // ddp/device/queries.hpp
class RecordedGraph;      // ddp/device/recorded_graph.hpp
}  // namespace ddp
namespace ddp {
struct BlockCopy;   // device/memory/block_copy.hpp
struct RandomFill;  // device/random/host_random.hpp
}  // namespace ddp

namespace ddp::cuda {

[[nodiscard]] bool is_built() noexcept;

/// The visible GPUs, one entry each, by CUDA's number. Opens no context.
[[nodiscard]] std::vector<LogicalDevice> visible_devices();
/// Why CUDA cannot be used; empty if it can.
[[nodiscard]] std::string why_no_devices();
[[nodiscard]] MemoryInfo memory_info(int visible);  ///< `visible` must be the current device
/// All properties but the names.
[[nodiscard]] DeviceProperties device_properties(int visible);
/// In CUDA's form, such as 13000; 0 without CUDA.
[[nodiscard]] int runtime_version() noexcept;

/// A graph that stream capture will record.
[[nodiscard]] std::shared_ptr<RecordedGraph> make_recorded_graph();

/// The calling thread's current device, by CUDA's number.
[[nodiscard]] int current_device();
void set_current_device(int visible);

// In a thread without a context, nearly every call of CUDA's runtime library opens one on GPU 0, whichever
// GPU the call is about: hundreds of MiB that other ranks may need. So does cudaSetDevice(0), even if it only
// restores the thread's device.

/// The calling thread's context; null if it has none. Opens none.
[[nodiscard]] void* current_context() noexcept;
/// Null for no context.
void set_current_context(void* context);
/// The context that all libraries of this process share on a GPU, by CUDA's number. Opens it.
[[nodiscard]] void* primary_context(int visible);
/// Whether it is open in this process.
[[nodiscard]] bool has_context(int visible);
/// For destructors, in any thread: calls `end`, which frees resources of `device`, in a context. Errors are
/// only logged: once CUDA has shut down, nothing is left to free.
void end_on(Device device, std::function<void()> const& end) noexcept;

[[nodiscard]] std::unique_ptr<Stream> make_stream(Device device, bool for_communication);
/// Gives `comm` another of the GPU's hardware queues, if launches on `compute` take longer while `comm`
/// waits. It measures this: the host waits for both streams, and then about 3 ms, at most 30. Which queues
/// disturb each other changes when streams are made, so call it when the program's libraries have made
/// theirs. Does nothing while `compute` is captured into a graph, nor for a stream of the program's own or of
/// an SmPartition. No other thread may use `comm` meanwhile.
void choose_queue(Stream& comm, Stream& compute);
/// The host waits for `stream`, also for what a failure has ended. Later waits for the stream do not throw
/// failures of before: the program knows them. False if the GPU itself has failed, or hangs. Does nothing for
/// a stream of a CPU.
bool forget_failures(Stream& stream) noexcept;
[[nodiscard]] std::unique_ptr<Event::Mark> make_mark(Device device);

[[nodiscard]] Tensor zeros(Shape const& shape, DType dtype, Device device);
[[nodiscard]] Tensor pinned_zeros(Shape const& shape, DType dtype);

/// The next three are about the pool of `device`. If it has none yet: 0, no effect, null.
[[nodiscard]] Bytes pool_reserved(Device device);
void empty_cache(Device device);
[[nodiscard]] void* pool_handle(Device device);  ///< the cudaMemPool_t, for tests

/// What CUDA knows of `address`; nullopt where CUDA was not started in this process.
[[nodiscard]] std::optional<MemoryPlace> place_of(void const* address);

void zero_fill(TensorView const& tensor, Stream& stream);
/// Loads the kernel of the next function onto the current GPU. Its first launch would otherwise wait for work
/// that runs there, which may wait for another thread of this process.
void load_copy_kernel();
/// As ddp::copy_elements(), which has checked `copies`.
void copy(std::span<Copy const> copies, Stream& stream);
/// As ddp::convert_elements(), which has checked `copies`; at least one. With `nonfinite`, a place for each
/// copy, types may be equal, and *nonfinite[i] becomes 1 if copy i writes a number that is not finite.
void convert(std::span<Copy const> copies, Stream& stream, std::span<std::uint8_t* const> nonfinite = {});
/// As load_copy_kernel(), for the kernel that converts these types.
void load_conversion(DType to, DType from);
/// As ddp::copy_block(), on a stream of a GPU.
void copy_block(BlockCopy const& copy, Stream& stream);
void fill_random(TensorView const& tensor, RandomFill const& how, Stream& stream);

}  // namespace ddp::cuda
