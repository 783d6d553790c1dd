// Exchanges the statistics of batch normalisation between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddp/comm/communicator.hpp"
#include "ddp/libtorch/sync_batch_norm.hpp"
#include "ddp/parallel/world.hpp"
#include "libtorch/gpu_streams.hpp"

namespace ddp::libtorch {

/// A communicator of a World's ranks that all SyncBatchNorm modules of the World share, beside those of
/// gradients. On a GPU it has a stream of its own, ordered with PyTorch's current stream at each call, so
/// that its operations have one order whatever streams a program uses; the host waits for nothing. On a CPU
/// operations run in the calling thread. When the World was rebuilt, the next operation makes another
/// communicator, of the ranks that are left.
class StatisticsExchange {
 public:
  /// The exchange of `world`; collective if there is none yet, or if it has failed.
  static std::shared_ptr<StatisticsExchange> of(World const& world);
  /// The SyncBatchNorm modules in `module`'s tree, itself included.
  [[nodiscard]] static std::vector<SyncBatchNormImpl const*> norms_of(torch::nn::Module const& module);
  /// Makes operations of the modules in `module`'s tree fail, on every rank, with `reason`.
  static void abort_those_of(torch::nn::Module const& module, std::string const& reason) noexcept;

  explicit StatisticsExchange(World world);

  [[nodiscard]] int size() const noexcept { return world_.size(); }
  /// Throws Error(invalid_argument) unless `input` lies on the world's device.
  void require_on_device(at::Tensor const& input) const;

  /// Gives the modules in `module`'s tree, without itself, their names in the tree.
  static void tell_names(torch::nn::Module const& module);

  // `norm`: the name of the module that calls, for CommErrors.

  /// Each rank's `mine` [n], in rank order: [size, n].
  [[nodiscard]] at::Tensor all_gather(at::Tensor const& mine, std::string const& norm);
  /// values[n] = the sum over ranks; row-major.
  void all_reduce(at::Tensor const& values, std::string const& norm);

 private:
  void connect();
  template <class Operation>
  void in_turn(char const* pass, std::string const& norm, Operation operation);

  World world_;
  int membership_ = 0;  // of the World, when communicator_ was made
  std::unique_ptr<GpuStreams> streams_;
  std::unique_ptr<Stream> own_stream_;  // of a GPU
  std::mutex mutex_;
  std::unique_ptr<Communicator> communicator_;  // null in a world of one rank
};

}  // namespace ddp::libtorch
