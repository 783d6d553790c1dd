// Optimizers that update many parameters in one kernel, and some of them at a time.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch {

/// An optimizer of PyTorch whose step is a few kernels for all parameters, where torch::optim launches a
/// dozen for each, and whose state is on the parameters' device: so it can be a part of a StepGraph, and
/// nothing waits for the device. It can update some of its parameters (on_bucket_ready()), and is what
/// ShardedOptimizer updates slices with. One thread at a time.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::Optimizer;  ///< Of parameters or groups, and default options.

  /// Updates all parameters that have a gradient, on PyTorch's current stream.
  at::Tensor step(LossClosure closure = nullptr) override;
  /// The same for these parameters of its own. Throws Error(invalid_argument) for one that it does not have.
  void update(std::vector<at::Tensor> const& parameters);

  /// From now on: where `found`, f32[1] on the parameters' device, is 1 when a step runs, that step changes
  /// nothing, as with DistributedDataParallel::found_nonfinite(). Undefined: every step counts, but for those
  /// that broke (DistributedDataParallel::uncommitted()), which it skips by itself.
  void skip_where(at::Tensor found) { skip_ = std::move(found); }
  /// With StepGraph, before each run(): copies the groups' learning rates to the device, where recorded steps
  /// read them; without it they keep the rates of when they were recorded.
  void prepare();

 protected:
  /// Parameters of one group, dtype and device that have a gradient.
  struct Batch {
    torch::optim::OptimizerOptions const* options;  ///< of the group
    std::vector<at::Tensor> parameters;             ///< these
    std::vector<at::Tensor> gradients;              ///< of each
  };
  /// Updates them. `rate`: on the device, if prepare() was called.
  virtual void run(Batch const& batch, std::optional<at::Tensor> const& rate,
                   std::optional<at::Tensor> const& skip) = 0;

  /// The index of a parameter's group. Throws Error(invalid_argument) if it has none.
  [[nodiscard]] std::size_t group_of(at::Tensor const& parameter);

 private:
  std::unordered_map<c10::TensorImpl const*, std::size_t> groups_;
  std::vector<at::Tensor> rates_;  // by group, once prepare() was called
  at::Tensor skip_;
};

/// What AdamW keeps of a parameter: under the names of torch.optim.AdamW.
struct DDP_EXPORT AdamWState : public torch::optim::OptimizerCloneableParamState<AdamWState> {
  at::Tensor step;            ///< f32, a scalar on the parameter's device
  at::Tensor exp_avg;         ///< mean of gradients
  at::Tensor exp_avg_sq;      ///< mean of their squares
  at::Tensor max_exp_avg_sq;  ///< its largest value; with amsgrad

  void serialize(torch::serialize::InputArchive& archive) override;         ///< For torch::load().
  void serialize(torch::serialize::OutputArchive& archive) const override;  ///< For torch::save().
};

/// torch.optim.AdamW(fused=True) of Python, with the options of torch::optim::AdamW.
class AdamW final : public FusedOptimizer {
 public:
  /// Throws Error(invalid_argument) for options that cannot be.
  explicit AdamW(std::vector<torch::optim::OptimizerParamGroup> const& groups,
                 torch::optim::AdamWOptions defaults = {});
  explicit AdamW(std::vector<at::Tensor> parameters,
                 torch::optim::AdamWOptions defaults = {});  ///< The same with one group.

  void save(torch::serialize::OutputArchive& archive) const override;  ///< For torch::save().
  void load(torch::serialize::InputArchive& archive) override;         ///< For torch::load().
  /// The state of a parameter of its own; made, as a first step begins, if there is none.
  AdamWState& state_of(at::Tensor const& parameter);

 private:
  void run(Batch const& batch, std::optional<at::Tensor> const& rate,
           std::optional<at::Tensor> const& skip) override;
};

/// torch.optim.SGD(fused=True) of Python, with the options of torch::optim::SGD.
class SGD final : public FusedOptimizer {
 public:
  /// Throws Error(invalid_argument) for options that cannot be.
  SGD(std::vector<torch::optim::OptimizerParamGroup> const& groups, torch::optim::SGDOptions defaults);
  SGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions defaults);  ///< The same with one group.

  void save(torch::serialize::OutputArchive& archive) const override;  ///< For torch::save().
  void load(torch::serialize::InputArchive& archive) override;         ///< For torch::load().

 private:
  void run(Batch const& batch, std::optional<at::Tensor> const& rate,
           std::optional<at::Tensor> const& skip) override;
};

}  // namespace libtorch
}  // namespace ddp
