// A stream of a GPU. Its functions exist in builds with CUDA only: programs that are to link with either kind
// of build use them inside `#if DDP_HAS_CUDA` of ddp/config.hpp.
#pragma once

#include <memory>

#include "ddp/core/export.hpp"
#include "ddp/device/stream.hpp"

struct CUstream_st;  // what cudaStream_t points to

namespace DDP_EXPORT ddp {

/// An ordered queue of work of one GPU.
class CudaStream final : public Stream {
 public:
  /// What the stream is for.
  enum class Kind {
    compute,        ///< keeps order with the legacy default stream, so that `kernel<<<grid, block>>>` fits in
    communication,  ///< of the highest priority, independent of the default stream
  };

  /// A new stream. Throws Error(not_found) for a device that is not there.
  CudaStream(Device device, Kind kind);
  /// The program's own stream (or the default stream, null), which must outlive this object and what it was
  /// given to. Throws Error(invalid_argument) for a stream of another GPU.
  CudaStream(Device device, CUstream_st* handle);
  /// For makers of streams that keep more alive: SmPartition.
  class DDP_HIDDEN State;
  explicit CudaStream(std::shared_ptr<State> state);  ///< For those who make streams.
  /// Waits for nothing: work that is still enqueued runs on.
  ~CudaStream() override;

  [[nodiscard]] Device device() const noexcept override;  ///< The GPU.
  /// The GPU waits for an event of a GPU's stream; for a HostStream it waits for a word in pinned memory,
  /// which that stream sets when it gets there, even after a failure.
  void wait(Stream& other) override;
  /// Throws the failure of a watch, of this stream or of one that it waited for, after the GPU has finished
  /// the stream's work; Error(device) as soon as the GPU itself fails.
  void synchronize() override;
  void block(HostStream& host) override;
  [[nodiscard]] bool is_capturing() const override;

  /// As CUDA knows it: pass it to kernels and libraries.
  [[nodiscard]] CUstream_st* handle() const noexcept;
  /// From now on waits for this stream, and for streams that wait for it, throw what `watch` reports, too.
  void watch(std::shared_ptr<StreamWatch const> watch);

  /// What outlives the object while others need the stream: watchdogs, streams that wait.
  [[nodiscard]] std::shared_ptr<State> const& state() const noexcept { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// `stream` as a CudaStream. Throws Error(invalid_argument) for a stream of another device kind, with which
/// GPUs this process sees and why: a World's stream is the CPU's where there are none.
[[nodiscard]] CudaStream& cuda_stream(Stream& stream);

}  // namespace ddp
