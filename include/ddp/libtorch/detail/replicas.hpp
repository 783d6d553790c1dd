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
  /// Makes them; null where the module runs alone.
  [[nodiscard]] static std::unique_ptr<Replicas> make(std::shared_ptr<torch::nn::Module> module,
                                                      DataParallelOptions const& options);
  virtual ~Replicas() = default;

  [[nodiscard]] virtual std::span<Device const> device_ids() const noexcept = 0;  ///< By replica.
  /// The parts of the inputs, by replica: as many replicas have one as there are chunks.
  [[nodiscard]] virtual std::vector<std::vector<at::Tensor>> scatter(
      std::vector<NestedTensor> const& inputs) const = 0;
  /// Gives the first `count` replicas the module's values, and calls task(i, replica) for each, in its
  /// thread. A replica's dynamic type is that of the module.
  virtual void run(std::size_t count,
                   std::function<void(std::size_t i, torch::nn::Module& replica)> const& task) = 0;
  /// The outputs of the replicas, put together one by one on the output device.
  [[nodiscard]] virtual std::vector<at::Tensor> gather(
      std::vector<std::vector<NestedTensor>> const& outputs) = 0;
};

}  // namespace detail
}  // namespace libtorch
}  // namespace ddp
