// A model whose backward pass is matrix products and nothing else.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ddp/core/ids.hpp"
#include "ddp/device/span_recorder.hpp"
#include "ddp/reducer/parameter.hpp"
#include "gemm.hpp"

namespace ddp::bench {

/// Linear layers of width × width without bias or activation. Its backward pass takes two products of the
/// same size for each layer, the first of which gives the gradient of the weights, and writes it to where it
/// is sent from; the layer that comes last needs only that one. Values are random, as their bits decide what
/// power a GPU draws, and keep their size from layer to layer.
class GemmChain {
 public:
  struct Sizes {
    std::size_t layers = 0;
    std::size_t width = 0;
    DType dtype = DType::f32;
  };
  /// On `stream`, which must outlive it. Inputs differ between ranks.
  GemmChain(Sizes const& sizes, Device device, Rank rank, Stream& stream);

  [[nodiscard]] std::vector<Parameter> parameters();
  /// Where the parameters' gradients are written, in their order; empty views before parameters() are used.
  [[nodiscard]] std::span<TensorView const> gradients() const noexcept { return gradients_; }
  /// New inputs of so many rows, and a forward pass. The host waits.
  void set_rows(std::size_t rows);

  /// Enqueues from now on there, which must outlive it, after what it has enqueued until now.
  /// `multiprocessors`: how many the stream has, 0 for all.
  void move_to(Stream& stream, int multiprocessors);

  // Spans go to `recorder`, if there is one.
  void forward(SpanRecorder* recorder = nullptr);
  /// Calls ready(parameter) after each gradient has been enqueued: the last layer first. Gradients are
  /// overwritten.
  void backward(std::function<void(std::size_t)> const& ready, SpanRecorder* recorder = nullptr);

 private:
  [[nodiscard]] Tensor random(std::size_t rows, double limit, std::uint64_t seed) const;

  Sizes sizes_;
  Device device_;
  Rank rank_;
  Stream* stream_;
  std::unique_ptr<Gemm> gemm_;
  std::vector<Tensor> weights_;
  std::vector<TensorView> gradients_;
  std::vector<Tensor> inputs_;     // of each layer, and the result
  Tensor loss_gradient_;           // of the result
  std::array<Tensor, 2> between_;  // gradients of inputs, by turns
};

}  // namespace ddp::bench
