// A network of fully connected layers with ReLU between them, trained to classify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/reducer/parameter.hpp"
#include "nn/context.hpp"
#include "nn/linear.hpp"
#include "nn/softmax_cross_entropy.hpp"
#include "nn/weight.hpp"

namespace nn {

/// Inputs [n, width] with their labels u8[n]. Views: the memory must live until backward() is done.
struct Samples {
  ddp::TensorView inputs;
  ddp::TensorView labels;
};

/// When a backward pass says that a gradient is complete.
enum class Announce : std::uint8_t {
  at_once,            ///< so that it travels while the rest of its layer is computed
  when_weights_read,  ///< when the pass has read the weight for the last time, so that it may be updated
};

struct MlpOptions {
  ddp::DType dtype = ddp::DType::f32;  ///< or f64
  std::uint64_t seed = 1;              ///< of the initial values: the same on any machine
};

/// Linear layers "fc1" to "fcN". Parameters in order: fc1.weight, fc1.bias, fc2.weight, …
class Mlp {
 public:
  using Options = MlpOptions;

  /// `widths`: of the input, of each hidden layer, and the number of classes. At least two, none 0.
  /// Throws Error(unsupported) for other dtypes.
  Mlp(std::vector<std::size_t> const& widths, Context const& context, Options options = {});
  // parameters() hands out addresses.
  Mlp(Mlp const&) = delete;
  Mlp& operator=(Mlp const&) = delete;

  [[nodiscard]] std::vector<ddp::Parameter> parameters();
  /// The same in the same order, for an optimizer.
  [[nodiscard]] std::vector<Weight*> weights();

  /// Makes room for forward() of so many samples: until one of more, all stays where it is.
  void reserve(std::size_t samples);
  /// Computes logits of samples (n may be 0), and what backward() needs, and adds to the score. On a GPU the
  /// host does not wait.
  void forward(Samples const& samples);
  /// Adds the gradient of the mean loss of the last forward() to every parameter's, from the last layer to
  /// the first, and calls `ready` with each parameter's index when its gradient is complete.
  /// With 0 samples it adds nothing, and calls `ready` all the same.
  void backward(GradientReady const& ready = {}, Announce announce = Announce::at_once);

  /// The sum over all forward() since the last call. On a GPU the host waits for it.
  [[nodiscard]] Score take_score() { return loss_.take_score(); }
  /// [n, classes], of the last forward().
  [[nodiscard]] ddp::TensorView logits() const { return rows(activations_.back()); }

 private:
  [[nodiscard]] ddp::TensorView rows(ddp::Tensor const& whole) const;

  ddp::DType dtype_;
  Context context_;
  std::deque<Linear> layers_;             // a deque, since a Weight must stay where it is
  std::vector<ddp::Tensor> activations_;  // [capacity, out] of each layer
  std::vector<ddp::Tensor> slopes_;       // the loss's gradients by activations_
  std::size_t capacity_ = 0;
  std::size_t samples_ = 0;
  Samples input_;
  SoftmaxCrossEntropy loss_;
};

}  // namespace nn
