// What DataParallel does that does not depend on the type of its module.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/libtorch/detail/nested_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace DDP_EXPORT ddp {
namespace libtorch {

struct DataParallelOptions;

namespace detail {

/// Replicas of a module, with their threads. One thread at a time; errors as DataParallel.
class Replicas {
 public:
  /// Makes the replicas, unless the module runs alone.
  Replicas(std::shared_ptr<torch::nn::Module> module, DataParallelOptions const& options);
  ~Replicas();
  Replicas(Replicas const&) = delete;
  Replicas& operator=(Replicas const&) = delete;

  [[nodiscard]] bool alone() const noexcept;                          ///< There is nothing to split.
  [[nodiscard]] std::span<Device const> device_ids() const noexcept;  ///< By replica; empty where alone.

  /// The parts of the inputs, by replica: as many replicas have one as there are chunks.
  [[nodiscard]] std::vector<std::vector<at::Tensor>> scatter(std::vector<NestedTensor> const& inputs) const;
  /// Gives the first `count` replicas the module's values, and calls task(i, replica) for each, in its
  /// thread. A replica's dynamic type is that of the module.
  void run(std::size_t count, std::function<void(std::size_t i, torch::nn::Module& replica)> const& task);
  /// The outputs of the replicas, put together one by one on the output device.
  [[nodiscard]] std::vector<at::Tensor> gather(std::vector<std::vector<NestedTensor>> const& outputs);

 private:
  class DDP_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace detail
}  // namespace libtorch
}  // namespace ddp
