// The handle of a GPU's stream, by which CUDA knows in which hardware queue its work goes.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/core/device.hpp"
#include "device/cuda/backend.hpp"

namespace ddp {

class StreamQueue {
 public:
  /// `owned`: whether the handle is destroyed with this object. `context`: kept alive for the handle.
  StreamQueue(Device device, cudaStream_t handle, bool owned, std::shared_ptr<void const> context)
      : device_(device), context_(std::move(context)), handle_(handle), owned_(owned) {}
  ~StreamQueue() {
    if (owned_) cuda::end_on(device_, [this] { static_cast<void>(cudaStreamDestroy(handle_)); });
  }
  StreamQueue(StreamQueue const&) = delete;
  StreamQueue& operator=(StreamQueue const&) = delete;

  [[nodiscard]] cudaStream_t handle() const noexcept { return handle_; }
  /// Whether take() may be called: the stream was made by CudaStream(device, kind).
  [[nodiscard]] bool may_change() const noexcept { return owned_ && context_ == nullptr; }
  /// Goes on with the handle of `other`, that of a stream of the same kind that nobody else uses. Both are
  /// idle. `other` keeps the handle that this had, which threads that watch the stream may still be using.
  void take(std::shared_ptr<StreamQueue> const& other) {
    handle_ = other->handle_.exchange(handle_);
    replaced_.push_back(other);
  }

 private:
  Device device_;
  std::shared_ptr<void const> context_;
  std::atomic<cudaStream_t> handle_;
  std::vector<std::shared_ptr<StreamQueue>> replaced_;
  bool owned_;
};

}  // namespace ddp
