// Checkpoints of modules, their optimizers and random numbers, under PyTorch's names.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

class ShardedOptimizer;

/// A module of several in a checkpoint.
struct NamedModule {
  std::string name;           ///< "generator": the names of its tensors begin with "generator."
  torch::nn::Module& module;  ///< must outlive the Checkpoint
};

/// An optimizer of several in a checkpoint.
struct NamedOptimizer {
  /// One that every rank has whole. It must outlive the Checkpoint.
  NamedOptimizer(std::string called, torch::optim::Optimizer& whole)
      : name(std::move(called)), optimizer(&whole) {}
  /// One of which every rank has a part. It must outlive the Checkpoint.
  NamedOptimizer(std::string called, ShardedOptimizer& divided)
      : name(std::move(called)), sharded(&divided) {}

  std::string name;                              ///< the names of its state begin with it; may be a module's
  torch::optim::Optimizer* optimizer = nullptr;  ///< the first kind
  ShardedOptimizer* sharded = nullptr;           ///< the second
};

/// ddp::Checkpoint of the parameters and buffers of modules, of the optimizers that train them, and of random
/// numbers.
///
/// model.safetensors has the names of Python's state_dict(): "layer1.0.bn1.running_mean"; of a tied parameter
/// the first. optimizer.safetensors has those of Python's flattened optimizer state:
/// "state.fc.weight.exp_avg", "state.fc.weight.step", and "param_groups.0.lr". Complex tensors are pairs of
/// real numbers along a last axis. Of optimizers it knows SGD, Adam, AdamW, RMSprop and Adagrad of PyTorch,
/// and this library's SGD and AdamW, which write the same.
///
/// A ShardedOptimizer's state is there whole, under the same names, so that plain and sharded programs read
/// each other's checkpoints on any number of ranks. Each rank writes and reads its parts. Of 16-bit
/// parameters it has the f32 masters too, "state.fc.weight.master".
///
/// rank-N.safetensors has the states of PyTorch's default generators of rank N, "generator.cpu" and
/// "generator.cuda" (of the rank's GPU; bytes of 255 without one). A rank whose number has none in the
/// checkpoint, as where there are more ranks than before, keeps its generators as they are.
///
/// Make it on every rank, after the module is wrapped. Members are collective, as of ddp::Checkpoint.
class Checkpoint {
 public:
  using Options = CheckpointOptions;  ///< How checkpoints are kept.

  /// As ddp::Checkpoint. Gives parameters without a state the one with which the optimizer would begin; so it
  /// is made after the optimizer, at any time. Module and optimizer must outlive it. Throws
  /// Error(unsupported) for another optimizer, and for SGD with dampening before its first step;
  /// Error(invalid_argument) for a parameter of the optimizer that is not the module's.
  Checkpoint(World world, std::filesystem::path folder, torch::nn::Module& module,
             torch::optim::Optimizer* optimizer = nullptr, Options options = {});
  /// The same for a sharded optimizer, whose parameters are row-major; otherwise it throws
  /// Error(unsupported).
  Checkpoint(World world, std::filesystem::path folder, torch::nn::Module& module,
             ShardedOptimizer& optimizer, Options options = {});
  /// The same for several modules and optimizers, for example of a GAN, saved and restored together.
  /// model.safetensors has "generator.fc.weight", optimizer.safetensors
  /// "generator.state.generator.fc.weight.exp_avg" and "generator.param_groups.0.lr" for an optimizer called
  /// "generator". Throws Error(invalid_argument) for a name that stands twice.
  Checkpoint(World world, std::filesystem::path folder, std::vector<NamedModule> modules,
             std::vector<NamedOptimizer> optimizers, Options options = {});
  ~Checkpoint();                                       ///< As ddp::Checkpoint.
  Checkpoint(Checkpoint&& other) noexcept;             ///< As ddp::Checkpoint.
  Checkpoint& operator=(Checkpoint&& other) noexcept;  ///< As ddp::Checkpoint.

  [[nodiscard]] std::string newest() const;  ///< As ddp::Checkpoint.
  /// As ddp::Checkpoint: into modules, optimizers' state and learning rates, and generators.
  [[nodiscard]] std::optional<RestoredCheckpoint> restore();
  void save(TrainingPosition const& position);  ///< As ddp::Checkpoint, at this point of the current stream.
  void wait();                                  ///< As ddp::Checkpoint.

 private:
  class DDP_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace libtorch
}  // namespace ddp
