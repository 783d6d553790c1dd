// PyTorch's current stream of this rank's GPU, as the runtime sees streams.
#pragma once

#include <functional>
#include <memory>

#include "ddp/core/device.hpp"
#include "ddp/device/stream.hpp"

namespace ddp::libtorch {

/// Streams that PyTorch has computed on, each made known to the runtime once. Any thread. A build without
/// CUDA, and a rank without a GPU, have none.
class GpuStreams {
 public:
  explicit GpuStreams(Device own);
  ~GpuStreams();
  GpuStreams(GpuStreams const&) = delete;
  GpuStreams& operator=(GpuStreams const&) = delete;

  /// The calling thread's current stream if it is another than at the last call, otherwise null. Lives as
  /// long as this object.
  [[nodiscard]] Stream* changed();
  /// The calling thread's current stream; null without a GPU.
  [[nodiscard]] Stream* current();
  /// Whether the current stream is captured into a CUDA graph. Makes no call that would break a capture.
  [[nodiscard]] bool is_capturing() const;
  /// Calls `work` with `stream`, one of the rank's GPU, as PyTorch's current one; on a CPU just calls it.
  void run_on(Stream& stream, std::function<void()> const& work);
  /// The same on a stream of this object, after the work on the current one and before its later work.
  void run_aside(std::function<void()> const& work);
  /// Calls `work(own)`: what it enqueues on `own` keeps its place in the current stream, and the host does
  /// not wait. Without a GPU just calls it.
  template <class Work>
  void in_turn(Stream& own, Work const& work) {
    Stream* const turn = current();
    if (turn != nullptr) own.wait(*turn);
    work(own);
    if (turn != nullptr) turn->wait(own);
  }

 private:
  class Known;
  std::unique_ptr<Known> known_;
};

/// Throws Error(unsupported) if this process has loaded two NCCL libraries: PyTorch and this library would
/// each call one, with memory and threads of their own.
void require_one_nccl();

}  // namespace ddp::libtorch
