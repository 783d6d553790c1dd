// A stream of a GPU. Only builds with CUDA have its functions: programs that are to link with either kind of
// build use them inside `#if DDP_HAS_CUDA` of ddp/config.hpp.
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
  /// The program's own stream (or the default stream, null), which must outlive this object and everything
  /// that uses it. Throws Error(invalid_argument) for a stream of another GPU.
  CudaStream(Device device, CUstream_st* handle);
  /// For code inside the library that makes special streams: SmPartition.
  class DDP_HIDDEN State;
  explicit CudaStream(std::shared_ptr<State> state);  ///< For code inside the library.
  /// Does not wait: work that is still enqueued runs on.
  ~CudaStream() override;

  [[nodiscard]] Device device() const noexcept override;  ///< The GPU.
  /// For a stream of a GPU, waits for an event; for a HostStream, for a word in pinned memory that the host's
  /// stream sets when it gets there, also after a failure.
  void wait(Stream& other) override;
  /// Waits until the GPU has left the stream; then throws what a watch of this stream (or of a stream that it
  /// waited for) reports, or Error(device) for errors of the GPU.
  void synchronize() override;
  void block(HostStream& host) override;
  [[nodiscard]] bool is_capturing() const override;

  /// As CUDA knows it: pass it to kernels and libraries.
  [[nodiscard]] CUstream_st* handle() const noexcept;
  /// For the runtime: from now on waits for this stream, and for streams that wait for it, check `watch` too.
  void watch(std::shared_ptr<StreamWatch const> watch);

  /// Shared with what may outlive this object: watchdogs, streams that wait.
  [[nodiscard]] std::shared_ptr<State> const& state() const noexcept { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// `stream` as a CudaStream. Throws Error(invalid_argument) for a stream of another kind of device; the
/// message says which GPUs this process sees and why, since without GPUs a World's stream is the CPU's.
[[nodiscard]] CudaStream& cuda_stream(Stream& stream);

}  // namespace ddp
