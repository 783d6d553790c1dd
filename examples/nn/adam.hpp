// Adam: Kingma and Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ddp/checkpoint/checkpoint_tensors.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/reducer/bucket_hooks.hpp"
#include "ddp/reducer/sharding.hpp"
#include "nn/weight.hpp"

namespace nn {

struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  /// f32[1] on the weights' GPU, as DistributedDataParallel::uncommitted(): where it is 1 when a step runs,
  /// that step changes nothing there. Empty: every step counts.
  ddp::TensorView skip{};
};

/// One step's numbers, with the corrections by t taken out of the loop over elements:
/// rate · m / (sqrt(v) · scale + ε).
struct AdamStep {
  double rate = 0;   ///< learning rate / (1-β₁ᵗ)
  double scale = 0;  ///< 1 / sqrt(1-β₂ᵗ)
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
};

/// m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; value -= rate · (m / (1-β₁ᵗ)) / (sqrt(v / (1-β₂ᵗ)) + ε).
class Adam {
 public:
  using Options = AdamOptions;
  /// The weights must outlive it.
  explicit Adam(std::vector<Weight*> weights, Options options = {});
  /// With Sharding::optimizer: has the state of these slices only, DistributedDataParallel::slices(), on the
  /// device of `context`. They must outlive it.
  Adam(std::span<ddp::Slice const> slices, Context const& context, Options options = {});
  // state() hands out addresses.
  Adam(Adam const&) = delete;
  Adam& operator=(Adam const&) = delete;

  // ---- of weights
  /// Applies the gradients, and leaves them zero: prepare(), then apply().
  void step();
  /// Puts the numbers of step `number`, from 1, where the weights are. The program counts: where a step is
  /// done again, as after a lost rank, it has the number that it had.
  void prepare(std::int64_t number);
  /// The rest of step(), which finds all in memory of the device: it can be recorded into a CUDA graph.
  void apply();
  /// The same for what a bucket holds of them: for on_bucket_ready(), in place of step(), with the weights in
  /// the order of the parameters. A backward pass may announce a weight's gradient only when it has read the
  /// weight for the last time.
  void update(ddp::ReducedBucket const& bucket);

  // ---- of slices
  /// For on_slice_ready(), with the rule of a bucket's update(), and for update_slices(). prepare() comes
  /// before the step. It leaves the gradients of the slice zero; those that other ranks update are cleared by
  /// DistributedDataParallel::zero_gradients(). It can be recorded into a CUDA graph.
  void update(ddp::Slice const& slice, ddp::Stream& stream);

  void set_learning_rate(double learning_rate) noexcept { options_.learning_rate = learning_rate; }

  /// All that the next step depends on, for checkpoints: "fc1.weight.mean", "fc1.weight.square", …, "steps".
  /// Of slices "steps" only.
  [[nodiscard]] std::vector<ddp::NamedTensor> state();
  /// Of slices: the rest, as parts of tensors with the same names.
  [[nodiscard]] std::vector<ddp::ShardedTensor> sharded_state(ddp::DistributedDataParallel const& ddp) const;

 private:
  void add_state(ddp::TensorView const& of, Context const& context);
  void prepare(std::int64_t number, Context const& context);
  void apply(ddp::BucketSlice const& piece, Context const& context);
  void apply(ddp::TensorView const& value, ddp::TensorView const& gradient, ddp::TensorView const& mean,
             ddp::TensorView const& square, Context const& context) const;

  Context context_;
  std::vector<Weight*> weights_;
  std::vector<ddp::Tensor> means_;  // by weight or by slice
  std::vector<ddp::Tensor> squares_;
  Options options_;
  std::int64_t steps_ = 0;
  AdamStep step_;
  ddp::Tensor numbers_;  // step_ on a GPU
};

namespace cpu {
void adam_step(ddp::TensorView const& value, ddp::TensorView const& gradient, ddp::TensorView const& mean,
               ddp::TensorView const& square, AdamStep const& step);
}  // namespace cpu
namespace cuda {
/// numbers u8[sizeof(AdamStep)] = step.
void write_step(Context const& context, ddp::TensorView const& numbers, AdamStep const& step);
void adam_step(Context const& context, ddp::TensorView const& value, ddp::TensorView const& gradient,
               ddp::TensorView const& mean, ddp::TensorView const& square, ddp::TensorView const& numbers,
               ddp::TensorView const& skip);
}  // namespace cuda

}  // namespace nn
