// PyTorch's current stream of this rank's GPU, as the runtime sees streams.
#pragma once

#include <functional>
#include <memory>

#include "ddp/core/device.hpp"
#include "ddp/device/stream.hpp"

namespace ddp::libtorch {

/// Streams that PyTorch has computed on, each made known to the runtime once. Any thread. Those of a build
/// without CUDA, or of a rank without a GPU: none.
class GpuStreams {
 public:
  /// Those of a rank on `own`.
  [[nodiscard]] static std::unique_ptr<GpuStreams> of(Device own);
  virtual ~GpuStreams() = default;

  /// The calling thread's current stream if it is another than at the last call, otherwise null. Lives as
  /// long as this object.
  [[nodiscard]] virtual Stream* changed() { return nullptr; }
  /// The calling thread's current stream; null without a GPU.
  [[nodiscard]] virtual Stream* current() { return nullptr; }
  /// Whether the current stream is captured into a CUDA graph. Makes no call that would break a capture.
  [[nodiscard]] virtual bool is_capturing() const { return false; }
  /// Calls `work` with `stream`, one of the rank's GPU, as PyTorch's current one; on a CPU just calls it.
  virtual void run_on(Stream& /*stream*/, std::function<void()> const& work) { work(); }
  /// The same on a stream of this object, after the work on the current one and before its later work.
  virtual void run_aside(std::function<void()> const& work) { work(); }
  /// Gives memory that PyTorch keeps for later, and nothing uses, back to the GPU's driver.
  virtual void free_unused_memory() {}
  /// Calls `work(own)`: what it enqueues on `own` keeps its place in the current stream, and the host does
  /// not wait. Without a GPU just calls it.
  template <class Work>
  void in_turn(Stream& own, Work const& work) {
    Stream* const turn = current();
    if (turn != nullptr) own.wait(*turn);
    work(own);
    if (turn != nullptr) turn->wait(own);
  }
};

/// Throws Error(unsupported) if this process has loaded two NCCL libraries: PyTorch and this library would
/// each call one, with memory and threads of their own.
void require_one_nccl();

}  // namespace ddp::libtorch
