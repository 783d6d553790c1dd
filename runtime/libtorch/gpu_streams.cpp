#include "libtorch/gpu_streams.hpp"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

class CudaStreams final : public GpuStreams {
 public:
  explicit CudaStreams(Device own) : own_(own), index_(cuda_index(own)) {}

  Stream* changed() override {
    CUstream_st* const now = handle();
    if (now == last_.load(std::memory_order_relaxed) && !first_) return nullptr;
    return use(now);
  }
  Stream* current() override { return use(handle()); }
  [[nodiscard]] bool is_capturing() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(handle(), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  void run_on(Stream& stream, std::function<void()> const& work) override {
    c10::cuda::CUDAStreamGuard const guard(
        c10::cuda::getStreamFromExternal(cuda_stream(stream).handle(), index_));
    work();
  }
  void run_aside(std::function<void()> const& work) override {
    auto const current = c10::cuda::getCurrentCUDAStream(index_);
    if (!aside_) aside_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_);
    begun_.record(current);
    {
      c10::cuda::CUDAStreamGuard const guard(*aside_);
      begun_.block(*aside_);
      try {
        work();
      } catch (...) {
        go_on(current);
        throw;
      }
    }
    go_on(current);
  }
  void free_unused_memory() override { c10::cuda::CUDACachingAllocator::emptyCache(); }

 private:
  void go_on(c10::cuda::CUDAStream current) {
    ended_.record(*aside_);
    ended_.block(current);
  }
  [[nodiscard]] CUstream_st* handle() const { return c10::cuda::getCurrentCUDAStream(index_).stream(); }
  Stream* use(CUstream_st* now) {
    std::lock_guard const lock(mutex_);
    last_.store(now, std::memory_order_relaxed);
    first_ = false;
    for (auto const& stream : streams_) {
      if (stream->handle() == now) return stream.get();
    }
    return streams_.emplace_back(std::make_unique<CudaStream>(own_, now)).get();
  }

  Device own_;
  c10::DeviceIndex index_;
  std::atomic<CUstream_st*> last_{nullptr};
  std::atomic<bool> first_{true};  // null is the default stream's handle
  std::mutex mutex_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
  std::optional<c10::cuda::CUDAStream> aside_;
  at::cuda::CUDAEvent begun_;  // what is run aside
  at::cuda::CUDAEvent ended_;
};

}  // namespace

std::unique_ptr<GpuStreams> GpuStreams::of(Device own) {
  if (own.kind == DeviceKind::cuda) return std::make_unique<CudaStreams>(own);
  return std::make_unique<GpuStreams>();
}

void require_one_nccl() {
  std::vector<std::string> loaded;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        std::string_view const path(info->dlpi_name);
        if (path.substr(path.rfind('/') + 1).starts_with("libnccl.so")) {
          static_cast<std::vector<std::string>*>(found)->emplace_back(path);
        }
        return 0;
      },
      &loaded);
  if (loaded.size() < 2) return;
  throw Error(
      ErrorCode::unsupported,
      text("this process has loaded ", loaded.size(), " NCCL libraries: ", join(loaded, " and "),
           "; expected one, for PyTorch and ddp together. Set LD_LIBRARY_PATH so that both find the same "
           "libnccl.so.2, the newer of them"));
}

}  // namespace ddp::libtorch
