// Checkpoints of a module and its optimizer, under PyTorch's names.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "ddp/checkpoint/checkpoint.hpp"
#include "ddp/core/export.hpp"
#include "ddp/parallel/world.hpp"

namespace torch {
namespace nn {
class Module;
}
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace DDP_EXPORT ddp {
namespace libtorch {

/// ddp::Checkpoint of a module's parameters and buffers and, if there is one, of the optimizer that trains
/// it.
///
/// model.safetensors has the names of Python's state_dict(): "layer1.0.bn1.running_mean"; of a tied parameter
/// the first. optimizer.safetensors has those of Python's flattened optimizer state:
/// "state.fc.weight.exp_avg", "state.fc.weight.step", and "param_groups.0.lr". Complex tensors are pairs of
/// real numbers along a last axis. Of optimizers it knows SGD, Adam, AdamW, RMSprop and Adagrad.
///
/// On every rank, after the module is wrapped: the members are collective, as those of ddp::Checkpoint.
class Checkpoint {
 public:
  using Options = CheckpointOptions;  ///< How checkpoints are kept.

  /// As ddp::Checkpoint. Gives parameters without a state the one with which the optimizer would begin; so it
  /// is made after the optimizer, at any time. Module and optimizer must outlive it. Throws
  /// Error(unsupported) for another optimizer, and for SGD with dampening before its first step;
  /// Error(invalid_argument) for a parameter of the optimizer that is not the module's.
  Checkpoint(World world, std::filesystem::path folder, torch::nn::Module& module,
             torch::optim::Optimizer* optimizer = nullptr, Options options = {});
  ~Checkpoint();                                       ///< As ddp::Checkpoint.
  Checkpoint(Checkpoint&& other) noexcept;             ///< As ddp::Checkpoint.
  Checkpoint& operator=(Checkpoint&& other) noexcept;  ///< As ddp::Checkpoint.

  [[nodiscard]] std::string newest() const;  ///< As ddp::Checkpoint.
  /// As ddp::Checkpoint: into the module, the optimizer's state and its learning rates.
  [[nodiscard]] std::optional<RestoredCheckpoint> restore();
  void save(TrainingPosition const& position);  ///< As ddp::Checkpoint, at this point of the current stream.
  void wait();                                  ///< As ddp::Checkpoint.

 private:
  class DDP_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace libtorch
}  // namespace ddp
