// What a CudaStream shares with watchdogs and with streams that wait for it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "ddp/core/tensor.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/stream/host_gate.hpp"
#include "device/cuda/stream/stream_queue.hpp"
#include "device/cuda/stream/stream_watches.hpp"

namespace ddp {

class CudaStream::State {
 public:
  /// `owned`: whether the handle is destroyed with this object. `context`: kept alive for the handle.
  State(Device device, cudaStream_t handle, bool owned, std::shared_ptr<void const> context = nullptr);
  ~State();
  State(State const&) = delete;
  State& operator=(State const&) = delete;

  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] cudaStream_t handle() const noexcept { return queue_->handle(); }
  [[nodiscard]] std::shared_ptr<StreamQueue> const& queue() const noexcept { return queue_; }

  /// Whether the GPU has done all that is enqueued. Throws Error(device), which begins with `failure`, after
  /// an error of the GPU.
  [[nodiscard]] bool is_idle(std::string_view failure) const;
  /// Also true of the default stream while a stream that synchronizes with it is captured.
  [[nodiscard]] bool is_capturing() const;
  /// Enqueues a mark; wait_for() of its number returns when the GPU has passed it. Any thread.
  [[nodiscard]] std::uint32_t mark();
  /// Which thread asks CUDA during a long wait whether the GPU is well: the waiting one, or one made for
  /// that. The call may block until the GPU moves on, because a thread that launches a kernel for the first
  /// time (modules are loaded lazily), or into a full queue, holds the driver's lock until then. So a thread
  /// that the GPU waits for must not make this call.
  enum class Questions : std::uint8_t { direct, aside };
  /// Any thread. Throws as CudaStream::synchronize().
  void wait_for(std::uint32_t mark, Questions questions) const;

  [[nodiscard]] HostGate& gate() noexcept { return gate_; }
  /// Enqueues a wait for that number of the gate and all smaller ones.
  void wait_for_host(std::uint32_t number);
  /// In pinned memory. [0]: the last mark passed, written by the GPU; [1]: the gate's.
  [[nodiscard]] std::uint32_t* words() const noexcept { return words_; }

  /// `other` waits for what has been enqueued here until now.
  void order_before(State& other);

  [[nodiscard]] StreamWatches& watches() noexcept { return watches_; }

 private:
  [[nodiscard]] bool passed(std::uint32_t mark) const noexcept;
  void throw_if_gpu_failed() const { static_cast<void>(is_idle("work on a GPU failed")); }
  /// Throws what the last question found, if it is answered; then asks again.
  void ask_aside() const;

  Device device_;
  Tensor memory_;  // pinned
  std::uint32_t* words_;
  HostGate gate_;
  std::shared_ptr<StreamQueue> queue_;
  cudaEvent_t event_ = nullptr;  // re-recorded for each order_before()
  std::mutex mark_mutex_;        // guards marks_ and their order
  std::uint32_t marks_ = 0;
  mutable StreamWatches watches_;
  mutable std::mutex question_mutex_;
  mutable std::future<void> question_;
};

/// Null and two more handles mean the current GPU's default streams.
[[nodiscard]] inline bool is_default_stream(cudaStream_t handle) noexcept {
  return handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

/// cuda::forget_failures() of a stream that is one of a GPU.
bool forget_failures(CudaStream& stream) noexcept;

/// CUDA's priority for streams of this kind on the current GPU.
[[nodiscard]] int priority_of(CudaStream::Kind kind);

/// While this lives, the stream's GPU is the current one, if the stream is a default stream or the thread has
/// no context.
class OnItsDevice {
 public:
  OnItsDevice(Device device, CUstream_st* handle) {
    if (is_default_stream(handle) || cuda::current_context() == nullptr) guard_.emplace(device);
  }
  explicit OnItsDevice(CudaStream const& stream) : OnItsDevice(stream.device(), stream.handle()) {}

 private:
  std::optional<DeviceGuard> guard_;
};

}  // namespace ddp
