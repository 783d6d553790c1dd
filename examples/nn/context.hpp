// Where layers keep their memory and do their work.
#pragma once

#include <memory>

#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

struct cublasContext;  // what cublasHandle_t points to

namespace nn {

/// A stream with its device, and what matrix products need there besides. Copies share it. One thread at a
/// time.
class Context {
 public:
  /// The CPU: the calling thread.
  Context();
  /// The device of `stream`, which must outlive everything that is made with this context. Not explicit, so
  /// that programs say Mlp(widths, world.stream()). Throws Error(invalid_argument) for a stream of the CPU
  /// that has a thread of its own: the layers of the CPU work in the caller's.
  Context(ddp::Stream& stream);

  [[nodiscard]] ddp::Device device() const noexcept;
  [[nodiscard]] bool on_gpu() const noexcept { return device().kind == ddp::DeviceKind::cuda; }
  [[nodiscard]] ddp::Stream& stream() const noexcept;

  /// Zeroed memory of the device. Its last owner may go at any time: it waits for the stream. It is not freed
  /// while an exception flies, nor when the stream has failed.
  [[nodiscard]] ddp::Tensor zeros(ddp::Shape const& shape, ddp::DType dtype) const;
  /// Zeroed host memory that the device can read and write, with the same rule.
  [[nodiscard]] ddp::Tensor pinned_zeros(ddp::Shape const& shape, ddp::DType dtype) const;
  /// Memory that somebody else has made for the device, with the same rule.
  [[nodiscard]] ddp::Tensor guarded(ddp::Tensor const& memory) const;

  /// Writes `from`, in host memory, to `to`, and waits until it is there.
  void upload(ddp::TensorView const& from, ddp::TensorView const& to) const;
  /// A copy of `from` in host memory; waits for the stream.
  [[nodiscard]] ddp::Tensor download(ddp::TensorView const& from) const;

  /// For products on this context's GPU and stream, made when first asked for.
  [[nodiscard]] cublasContext* cublas() const;

 private:
  struct State;
  struct Guarded;
  std::shared_ptr<State> state_;
};

namespace cuda {
/// A handle whose work goes to `stream`, a stream of a GPU, in full f32 and f64: no TF32.
[[nodiscard]] std::shared_ptr<cublasContext> make_cublas(ddp::Stream& stream);
}  // namespace cuda

}  // namespace nn
