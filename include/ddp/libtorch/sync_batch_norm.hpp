// Batch normalisation over the samples of all ranks.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>

#include "ddp/core/export.hpp"
#include "ddp/parallel/world.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch {

class DDP_HIDDEN StatisticsExchange;
class DDP_HIDDEN SyncBatchNormConversion;

/// What torch::nn::BatchNorm1d, BatchNorm2d and BatchNorm3d do, with the mean and the variance of all ranks'
/// samples while the module trains. Parameters, buffers and their names are theirs, so checkpoints of either
/// can be loaded into the other. In evaluation (eval()), and in a world of one rank, it does exactly what
/// they do, and nothing is sent.
///
/// Input: [N, C, …] on the world's device, of float, double, half or bfloat16; statistics of the last two are
/// float. C is the same on every rank, N need not be, and may be 0. Where all ranks together have fewer than
/// two values per channel, running statistics stay as they are.
///
/// In training, forward() and its part of backward() are collective: every rank calls the same modules in the
/// same order, and one without samples calls them with N = 0. All modules of a World share a communicator of
/// their own, which the first one makes. On a GPU the host waits for nothing, except for the count of
/// cumulative averages (`momentum` is nullopt), for which torch::nn::BatchNorm waits as well.
///
/// The gradients are those of the sum of all ranks' losses. So their averages, as DistributedDataParallel
/// makes them, are a single process's on the whole batch if all ranks have the same number of samples;
/// otherwise divide each rank's sum by the mean number of samples, and leave the weights of ranks
/// (set_weight()) equal.
///
/// forward() and backward() throw Error(invalid_argument) for another input on this rank, before anything is
/// sent, and CommError if ranks call different modules, have different C, or are lost, at the latest after
/// WorldOptions::timeout. They also do if only some ranks call forward() without eval(), for example to draw
/// samples. The error names the module; on a GPU a later call may throw it. Then no module that shares the
/// communicator can be trained any more. backward() with create_graph throws Error(unsupported): the gradient
/// has no graph of its own.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Collective for the first one of a World that lives; `like` as of BatchNorm2d. The module holds a copy of
  /// the World, so it must be gone before the program ends. Throws what Communicator::split() does.
  SyncBatchNormImpl(World const& world, torch::nn::BatchNormOptions const& like);

  /// Normalised `input`, in its form.
  at::Tensor forward(at::Tensor const& input);
  /// As BatchNorm's, with this module's name.
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(at::Tensor const& input) override;  ///< At least [N, C], and C is `num_features`.

 private:
  friend class StatisticsExchange;
  friend class SyncBatchNormConversion;
  [[nodiscard]] std::string called() const;
  std::shared_ptr<StatisticsExchange> exchange_;
  std::string path_;  // in a module that was wrapped
};

/// Holds a SyncBatchNormImpl, as BatchNorm2d holds a BatchNorm2dImpl: write SyncBatchNorm(world, channels) in
/// place of BatchNorm2d(channels).
TORCH_MODULE(SyncBatchNorm);

/// Puts a SyncBatchNorm in place of each BatchNorm1d, BatchNorm2d and BatchNorm3d in a Sequential, ModuleList
/// or ModuleDict of `module`'s tree, itself included: with its tensors (an optimizer that has them goes on),
/// options and mode. Returns how many there were. Collective, before the module is wrapped.
///
/// C++ cannot replace what a class of the program holds by its type (`torch::nn::BatchNorm2d norm`): if there
/// is such a one, or if `module` is one, nothing is changed, and Error(unsupported) names them. Throws
/// Error(invalid_state) for a module that is wrapped.
std::size_t convert_sync_batchnorm(World const& world, torch::nn::Module& module);

}  // namespace libtorch
}  // namespace ddp
