#include <cuda_runtime_api.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda_backend.hpp"
#include "device/cuda_check.hpp"

namespace ddp::cuda {
namespace {

// NCCL reads whole words, beyond the end of 6 bytes too: those bytes are part of the allocation.
constexpr std::size_t kGranule = 16;

// The stream-ordered pool of one GPU, and the stream that orders it. It lives as long as memory from it.
class Pool {
 public:
  explicit Pool(Device device) : device_(device) {
    DeviceGuard const guard(device);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = logical_device(device).visible;
    check(cudaMemPoolCreate(&pool_, &properties), text("making a memory pool of ", device));
    // Freed memory stays in the pool for the next allocation.
    std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "setting up a memory pool");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), text("making a stream of ", device));
  }
  ~Pool() {
    static_cast<void>(cudaStreamDestroy(stream_));
    static_cast<void>(cudaMemPoolDestroy(pool_));
  }
  Pool(Pool const&) = delete;
  Pool& operator=(Pool const&) = delete;

  [[nodiscard]] void* allocate(std::size_t bytes, std::string const& what) {
    DeviceGuard const guard(device_);
    void* memory = nullptr;
    bytes = (bytes + kGranule - 1) / kGranule * kGranule;
    if (cudaError_t const result = cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_);
        result != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      if (result == cudaErrorMemoryAllocation) throw_out_of_memory(what);
      check(result, text("allocating ", what));
    }
    check(cudaMemsetAsync(memory, 0, bytes, stream_), text("zeroing ", what));
    check(cudaStreamSynchronize(stream_), text("allocating ", what));
    return memory;
  }

  [[nodiscard]] PoolUse use() const {
    auto const read = [this](cudaMemPoolAttr attribute) {
      std::uint64_t bytes = 0;
      check(cudaMemPoolGetAttribute(pool_, attribute, &bytes), text("reading the memory pool of ", device_));
      return Bytes{bytes};
    };
    return {read(cudaMemPoolAttrUsedMemCurrent), read(cudaMemPoolAttrUsedMemHigh),
            read(cudaMemPoolAttrReservedMemCurrent)};
  }

  void free(void* memory) noexcept {
    // After the process has lost its context there is nothing left to free.
    if (cudaError_t const result = cudaFreeAsync(memory, stream_); result != cudaSuccess) {
      log(LogLevel::debug, text("freeing memory of ", device_, ": ", cudaGetErrorName(result)));
    }
  }

 private:
  [[noreturn]] void throw_out_of_memory(std::string const& what) const {
    std::size_t free = 0;
    std::size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    LogicalDevice const& device = logical_device(device_);
    throw Error(ErrorCode::out_of_memory,
                text("out of memory on ", device_, " (", device.name, ", ", device.uuid, "): ", what,
                     " does not fit, ", to_string(Bytes{free}), " of ", to_string(Bytes{total}),
                     " are free; nvidia-smi lists the processes that hold the rest"));
  }

  Device device_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

// One pool a GPU, made when first needed.
std::shared_ptr<Pool> pool_of(Device device) {
  static std::mutex mutex;
  static std::map<int, std::shared_ptr<Pool>> pools;
  int const visible = logical_device(device).visible;
  std::lock_guard const lock(mutex);
  auto& pool = pools[visible];
  if (!pool) pool = std::make_shared<Pool>(device);
  return pool;
}

}  // namespace

Tensor zeros(Shape const& shape, DType dtype, Device device) {
  TensorView view{nullptr, shape, dtype, device};
  static_cast<void>(logical_device(device));
  if (view.bytes() == 0) return {view, nullptr};
  auto const pool = pool_of(device);
  view.data = pool->allocate(view.bytes(), text(dtype, shape, ", ", to_string(Bytes{view.bytes()}), ","));
  return {view, std::shared_ptr<void>(view.data, [pool](void* memory) { pool->free(memory); })};
}

PoolUse pool_use(Device device) { return pool_of(device)->use(); }

Tensor pinned_zeros(Shape const& shape, DType dtype) {
  TensorView view{nullptr, shape, dtype, Device{}};
  if (logical_devices().empty() || view.bytes() == 0) return Tensor::zeros(shape, dtype);
  cudaError_t const result =
      cudaHostAlloc(&view.data, view.bytes(), cudaHostAllocPortable | cudaHostAllocMapped);
  if (result != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorCode::out_of_memory, text("cannot pin ", to_string(Bytes{view.bytes()}),
                                               " of host memory: ", cudaGetErrorString(result)));
  }
  std::fill_n(static_cast<std::byte*>(view.data), view.bytes(), std::byte{0});
  return {view,
          std::shared_ptr<void>(view.data, [](void* memory) { static_cast<void>(cudaFreeHost(memory)); })};
}

}  // namespace ddp::cuda
