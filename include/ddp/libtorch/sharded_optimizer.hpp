// An optimizer of PyTorch of which each rank keeps a part.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/libtorch/distributed_data_parallel.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch {

class ShardedState;

/// Updates this rank's part of every bucket, and gives the other ranks the new values. So each rank keeps 1/n
/// of the optimizer's state, and reads and writes 1/n of the weights; what travels is what all-reduces send.
///
///   options.runtime.sharding = ddp::Sharding::optimizer;
///   ddp::libtorch::DistributedDataParallel model(world, *net, options);
///   ddp::libtorch::ShardedOptimizer optimizer(model, [](auto groups) {
///     return std::make_unique<ddp::libtorch::AdamW>(groups, torch::optim::AdamWOptions(3e-4));
///   });
///   …
///   optimizer.zero_grad();
///   loss.backward();
///   optimizer.step();
///
/// The optimizer inside has pieces of parameters, one-dimensional, in place of parameters: it must treat
/// every element alike, whatever tensor it is in. Adam, AdamW, SGD, RMSprop and Adagrad do; what needs whole
/// matrices or their norms (LBFGS, LAMB, Muon) does not, which nobody notices. Pieces of 16-bit parameters
/// are f32: their masters, which are rounded into the parameters after each step, and made
/// anew where the program has changed a parameter since.
///
/// Members are called alike on every rank. One thread at a time. `model` must outlive it.
class ShardedOptimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;  ///< Of parameters, or of pieces of them.
  /// Makes the optimizer of these groups, which have the options of the parameters' groups.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups groups)>;
  /// When slices are updated.
  enum class Update : std::uint8_t {
    in_step,      ///< in step()
    in_backward,  ///< as soon as their averages are there, while the rest of backward() runs
  };

  /// Collective. `groups`: parameters of the module, each once; empty: one group of all. With in_backward the
  /// optimizer must be a FusedOptimizer, the rest of backward() must not need parameters whose gradient is
  /// complete (DistributedDataParallel::on_bucket_ready()), and a parameter that no rank used has a gradient
  /// of zeros. Throws on every rank: Error(invalid_state) for a model without Options::runtime.sharding,
  /// Error(invalid_argument) for groups that are not the module's, a factory that returns null or keeps other
  /// tensors, CommError(mismatch) for options that differ between ranks.
  ShardedOptimizer(DistributedDataParallel& model, Factory const& make, Groups const& groups = {},
                   Update update = Update::in_step);
  ~ShardedOptimizer();
  ShardedOptimizer(ShardedOptimizer const&) = delete;
  ShardedOptimizer& operator=(ShardedOptimizer const&) = delete;

  /// Collective, after backward(): updates parameters that have a gradient, as torch::optim does, and makes
  /// the current stream wait for the values of all ranks. With in_backward, that is done already. Throws
  /// Error(invalid_state) for a second call after one step, and, behind steps in which Options::verify_every
  /// compares weights, CommError(mismatch) on every rank if options, as learning rates, differ.
  void step();
  /// Clears the gradients of the module's parameters.
  void zero_grad(bool set_to_none = true);
  /// The optimizer of the pieces, for learning rates and FusedOptimizer::skip_where().
  [[nodiscard]] torch::optim::Optimizer& inner() noexcept;

  /// A parameter that is trained.
  struct Trained {
    std::string name;       ///< in its module
    at::Tensor parameter;   ///< the module's
    std::size_t group = 0;  ///< of inner()
  };
  /// All of them, the same on every rank.
  [[nodiscard]] std::vector<Trained> parameters() const;
  /// A tensor of inner().
  struct Piece {
    std::size_t parameter = 0;  ///< of which it has elements, in parameters()
    std::size_t offset = 0;     ///< the first, in the parameter's order of memory
    at::Tensor tensor;          ///< one-dimensional
    bool is_master = false;     ///< in f32, of a 16-bit parameter
  };
  /// This rank's.
  [[nodiscard]] std::vector<Piece> pieces() const;

 private:
  friend class ShardedState;
  class DDP_HIDDEN Impl;
  void masters_are_new();
  std::unique_ptr<Impl> impl_;
};

}  // namespace libtorch
}  // namespace ddp
