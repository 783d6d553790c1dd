#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

#include "core/round_up.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory_settings.hpp"
#include "ddp/device/queries.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/driver_api.hpp"
#include "device/memory/memory_account.hpp"

namespace ddp::cuda {
namespace {

// NCCL reads whole words, even of 6 bytes: the allocation includes what it reads past their end.
constexpr std::size_t kGranule = 16;

// More than the driver adds to a pool at once.
constexpr std::uint64_t kPiece = (64_MiB).value;

// A pool that takes all memory leaves this to CUDA's libraries, or total / kReservePart if that is more.
constexpr std::size_t kReserve = (512_MiB).value;
constexpr std::size_t kReservePart = 20;

// The stream-ordered pool of one logical device, and the stream that orders it. Each slice of a GPU has a
// pool of its own, so that the driver counts memory of each. What one slice keeps unused is not available to
// another until an allocation fails and all pools are emptied. A pool lives as long as memory from it.
class Pool {
 public:
  Pool(Device device, std::optional<Bytes> limit, bool grows) : device_(device) {
    DeviceGuard const guard(device);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = *logical_device(device).visible;
    check(cudaMemPoolCreate(&pool_, &properties), text("making a memory pool of ", device));
    // Freed memory stays in the pool for the next allocation, up to the device's limit and one piece more,
    // since the driver adds memory in pieces.
    std::uint64_t kept = limit && grows ? limit->value + kPiece : std::numeric_limits<std::uint64_t>::max();
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &kept),
          text("setting up the memory pool of ", device));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), text("making a stream of ", device));
    load_copy_kernel();  // before a collective can run on memory of this pool
  }
  ~Pool() {
    end_on(device_, [this] {
      static_cast<void>(cudaStreamDestroy(stream_));
      static_cast<void>(cudaMemPoolDestroy(pool_));
    });
  }
  Pool(Pool const&) = delete;
  Pool& operator=(Pool const&) = delete;

  [[nodiscard]] cudaMemPool_t handle() const noexcept { return pool_; }

  /// Null where there is no room.
  [[nodiscard]] void* allocate(std::size_t bytes, std::string const& what) {
    DeviceGuard const guard(device_);
    void* memory = nullptr;
    bytes = round_up(bytes, kGranule);
    if (cudaError_t const result = cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_);
        result != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      if (result == cudaErrorMemoryAllocation) return nullptr;
      check(result, text("allocating ", what));
    }
    check(cudaMemsetAsync(memory, 0, bytes, stream_), text("zeroing ", what));
    check(cudaStreamSynchronize(stream_), text("allocating ", what));
    return memory;
  }

  [[nodiscard]] Bytes reserved() const {
    DeviceGuard const guard(device_);
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes),
          text("reading the memory pool of ", device_));
    return Bytes{bytes};
  }

  void empty() {
    DeviceGuard const guard(device_);
    check(cudaStreamSynchronize(stream_), text("waiting for memory of ", device_));
    check(cudaMemPoolTrimTo(pool_, 0), text("giving back memory of ", device_));
  }

  void free(void* memory) noexcept {
    // After the process has lost its context there is nothing left to free.
    if (cudaError_t const result = cudaFreeAsync(memory, stream_); result != cudaSuccess) {
      log(LogLevel::debug, text("freeing memory of ", device_, ": ", cudaGetErrorName(result)));
    }
  }

  /// Kernels and copies of `other` may use this pool's memory, where the GPUs reach each other.
  void open_to(Pool const& other) {
    int const from = *logical_device(other.device_).visible;
    int const own = *logical_device(device_).visible;
    int reaches = 0;
    if (from == own) return;
    DeviceGuard const guard(device_);
    check(cudaDeviceCanAccessPeer(&reaches, from, own),
          text("asking whether ", other.device_, " reaches memory of ", device_));
    if (reaches == 0) return;  // CUDA then copies through the host
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = from;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    check(cudaMemPoolSetAccess(pool_, &access, 1),
          text("opening memory of ", device_, " to ", other.device_));
  }

  /// Allocates and frees the limit, or what is free less the reserve: the pool keeps it.
  void take_all(std::optional<Bytes> limit) {
    DeviceGuard const guard(device_);
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), text("asking for the memory of ", device_));
    std::size_t const left = std::max(kReserve, total / kReservePart);
    std::size_t const bytes = limit ? limit->value : free - std::min(free, left);
    if (bytes == 0) return;
    void* memory = nullptr;
    if (cudaError_t const result = cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_);
        result != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      throw Error(ErrorCode::out_of_memory,
                  text("set_memory_growth(false): ", device_, " cannot take ", to_string(Bytes{bytes}),
                       " at the start, ", to_string(Bytes{free}), " of ", to_string(Bytes{total}),
                       " are free; set a lower limit (set_memory_limit), or let it grow"));
    }
    check(cudaFreeAsync(memory, stream_), text("filling the memory pool of ", device_));
    check(cudaStreamSynchronize(stream_), text("filling the memory pool of ", device_));
  }

 private:
  Device device_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

// The pools of this process, made when first needed. Pools of different GPUs are open to each other: a
// process that uses one GPU pays nothing for the others.
class Pools {
 public:
  [[nodiscard]] std::shared_ptr<Pool> of(Device device) {
    std::lock_guard const lock(mutex_);
    if (auto const found = pools_.find(device); found != pools_.end()) return found->second;
    auto const limit = memory_limit(device);
    bool const grows = pool_grows(device);
    auto const pool = std::make_shared<Pool>(device, limit, grows);
    if (!grows) pool->take_all(limit);
    for (auto const& [other, there] : pools_) {
      pool->open_to(*there);
      there->open_to(*pool);
    }
    pools_.emplace(device, pool);
    return pool;
  }

  [[nodiscard]] std::shared_ptr<Pool> find(Device device) {
    std::lock_guard const lock(mutex_);
    auto const found = pools_.find(device);
    return found == pools_.end() ? nullptr : found->second;
  }

  /// Gives back what the pools of that GPU hold unused.
  void empty_all(int visible) {
    std::lock_guard const lock(mutex_);
    for (auto const& [device, pool] : pools_) {
      if (logical_device(device).visible == visible) pool->empty();
    }
  }

 private:
  std::mutex mutex_;
  std::map<Device, std::shared_ptr<Pool>> pools_;
};

Pools& pools() {
  static Pools all;
  return all;
}

[[noreturn]] void throw_out_of_memory(Device device, std::string const& what) {
  MemoryInfo const memory = memory_info(device);
  LogicalDevice const& gpu = logical_device(device);
  throw Error(ErrorCode::out_of_memory,
              text("out of memory on ", device, " (", gpu.name, ", ", gpu.uuid, "): ", what,
                   " does not fit, ", to_string(memory.free), " of ", to_string(memory.total),
                   " are free; nvidia-smi lists the processes that hold the rest"));
}

}  // namespace

Tensor zeros(Shape const& shape, DType dtype, Device device) {
  TensorView view{nullptr, shape, dtype, device};
  if (view.bytes() == 0) return {view, nullptr};
  auto const pool = pools().of(device);
  std::string const what = text(dtype, shape, ", ", to_string(Bytes{view.bytes()}), ",");
  view.data = pool->allocate(view.bytes(), what);
  if (view.data == nullptr) {  // other slices of the GPU may hold memory that they do not use
    pools().empty_all(*logical_device(device).visible);
    view.data = pool->allocate(view.bytes(), what);
  }
  if (view.data == nullptr) throw_out_of_memory(device, what);
  return {view, std::shared_ptr<void>(view.data, [pool](void* memory) { pool->free(memory); })};
}

Bytes pool_reserved(Device device) {
  auto const pool = pools().find(device);
  return pool ? pool->reserved() : Bytes{};
}

void empty_cache(Device device) {
  if (auto const pool = pools().find(device)) pool->empty();
}

void* pool_handle(Device device) {
  auto const pool = pools().find(device);
  return pool ? pool->handle() : nullptr;
}

std::optional<MemoryPlace> place_of(void const* address) {
  if (!cuda_is_initialized()) return std::nullopt;
  static auto* const ask = driver_function<decltype(cuPointerGetAttributes)>(
      "cuPointerGetAttributes", "looking where memory lies", "7");
  unsigned int type = 0;
  unsigned int managed = 0;  // a bool of the driver's, in its lowest byte
  int visible = 0;
  std::array attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 3> answers{&type, &managed, &visible};
  // For memory that it does not know, the driver answers with zeros.
  if (ask(answers.size(), attributes.data(), answers.data(), reinterpret_cast<CUdeviceptr>(address)) !=
      CUDA_SUCCESS) {
    return std::nullopt;
  }
  using Kind = MemoryPlace::Kind;
  if (managed != 0) return MemoryPlace{Kind::managed};
  if (type == CU_MEMORYTYPE_DEVICE) return MemoryPlace{Kind::gpu, visible};
  return MemoryPlace{type == CU_MEMORYTYPE_HOST ? Kind::pinned : Kind::plain};
}

// Pinned memory belongs to no GPU: it is allocated in a context that is open, if any is, and freed without
// one.
Tensor pinned_zeros(Shape const& shape, DType dtype) {
  TensorView view{nullptr, shape, dtype, Device{}};
  auto const gpus = logical_devices();
  if (gpus.empty() || view.bytes() == 0) return Tensor::zeros(shape, dtype);
  static auto* const free = driver_function<decltype(cuMemFreeHost)>("cuMemFreeHost", "pinned memory", "4");
  std::optional<DeviceGuard> guard;
  if (current_context() == nullptr) {
    auto const open = std::find_if(gpus.begin(), gpus.end(),
                                   [](LogicalDevice const& gpu) { return has_context(*gpu.visible); });
    guard.emplace((open == gpus.end() ? gpus.begin() : open)->device);
  }
  cudaError_t const result =
      cudaHostAlloc(&view.data, view.bytes(), cudaHostAllocPortable | cudaHostAllocMapped);
  if (result != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorCode::out_of_memory, text("cannot pin ", to_string(Bytes{view.bytes()}),
                                               " of host memory: ", cudaGetErrorString(result)));
  }
  std::fill_n(static_cast<std::byte*>(view.data), view.bytes(), std::byte{0});
  return {view, std::shared_ptr<void>(view.data, [](void* memory) {
            if (CUresult const freed = free(memory); freed != CUDA_SUCCESS) {
              log(LogLevel::debug, text("freeing pinned memory: error ", static_cast<int>(freed)));
            }
          })};
}

}  // namespace ddp::cuda
