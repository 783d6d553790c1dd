// One process, several devices: a batch is split over replicas of a module of PyTorch, one thread each.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/text.hpp"
#include "ddp/libtorch/detail/nested_tensors.hpp"
#include "ddp/libtorch/detail/replicas.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch {

/// Settings of DataParallel.
struct DataParallelOptions {
  /// Where replicas are, by logical number; the first device has the module itself. A device may be named
  /// several times. Unset: every logical GPU. Empty, or unset without a GPU: the module runs on its own
  /// device, as if it were not wrapped.
  std::optional<std::vector<Device>> device_ids{};
  /// Where outputs are gathered, which may be the CPU. Unset: the first of device_ids.
  std::optional<Device> output_device{};
  std::size_t dim = 0;  ///< along which inputs are split and outputs put together
};

/// Splits the inputs of a module over devices; backward() sums the gradients of all replicas.
///
/// forward() gives every replica the values of the module's parameters and buffers, splits the tensors among
/// the inputs along Options::dim into chunks of ⌈n / devices⌉ rows (5 rows over 4 devices are 2, 2 and 1, so
/// 3 replicas work), calls the module's forward() on each replica in a thread of its own, and concatenates
/// the outputs on the output device. Tensors in vectors, maps, tuples, pairs, arrays and optionals are split
/// too; any other value is shared by all replicas, by reference. Outputs are tensors, or such containers of
/// tensors. Scalars, such as losses, become a vector with an element for each replica that worked. On one
/// device nothing is split, and outputs stay as they are.
///
/// Autograd sees one graph. The gradients of all replicas are summed, as in a module that has the whole
/// batch, before they reach a parameter of the module: hooks on it, torch::autograd::grad(), a graph of
/// gradients and libtorch::DistributedDataParallel of the same module work as without replicas. A loss that
/// is a mean over each replica's part must be averaged by the program.
///
/// Replica 0 is the module itself: what it writes into buffers is kept, what others write is lost. The others
/// are made by its clone(), so a module with replicas derives from torch::nn::Cloneable; they live between
/// passes, and are made again when a parameter is frozen, unfrozen, added or converted. Each pass copies
/// values again and follows train() and eval(). Other members stay as they were when the replicas were made;
/// tensors of the module that it did not register stay where they are, shared by all.
///
/// Replicas run with what the calling thread has set: whether autograd records, autocast, inference mode, the
/// current stream of each GPU. Random numbers, as for dropout, come from the default generator of each
/// device: CPU replicas share one, in an order that depends on their threads, and manual_seed() gives every
/// GPU the same.
///
/// An error of a replica is thrown when all threads have ended: "replica 2 on cuda:2: …", that of the lowest
/// one if there are several; a CommError as such, another ddp::Error with its code, anything else as
/// Error(invalid_state), with the original nested. The next pass works again. Slower than
/// DistributedDataParallel, which neither splits inputs in one thread nor sends values. It cannot be captured
/// into a CUDA graph. One thread at a time; a graph that a pass has made outlives this object.
template <std::derived_from<torch::nn::Module> M>
class DataParallel {
 public:
  using Options = DataParallelOptions;  ///< Where replicas are.

  /// Shares the module, and makes the replicas. Throws Error(invalid_argument) naming what is not on
  /// device_ids[0], Error(not_found) for a device that is not there, Error(unsupported) for a module that
  /// cannot be cloned, with what to do. Warns where one device has less than 75 % of another's memory or
  /// cores.
  explicit DataParallel(std::shared_ptr<M> module, Options const& options = {})
      : module_(std::move(module)), replicas_(detail::Replicas::make(module_, options)) {}
  /// The same for the module in a holder, such as torch::nn::Sequential.
  explicit DataParallel(torch::nn::ModuleHolder<M> const& holder, Options const& options = {})
      : DataParallel(holder.is_empty() ? nullptr : holder.ptr(), options) {}
  /// The same. `module` must outlive this object unless a shared_ptr owns it, which this object then shares.
  explicit DataParallel(M& module, Options const& options = {})
      : DataParallel(std::shared_ptr<M>(module.weak_from_this().lock(), &module), options) {}

  /// The module's output for the whole batch. Throws Error(invalid_argument) for inputs that cannot be split
  /// (no tensor, no dimension Options::dim, different numbers of chunks), outputs that cannot be put
  /// together, parameters that are no longer on device_ids[0]; what replicas throw, as said above;
  /// Error(invalid_state) inside of a replica, and during a capture.
  template <class... Inputs>
  auto forward(Inputs const&... inputs) -> std::decay_t<decltype(std::declval<M&>().forward(inputs...))> {
    using Output = std::decay_t<decltype(std::declval<M&>().forward(inputs...))>;
    static_assert(detail::TensorsIn<Output>::all && !detail::TensorsIn<Output>::borrowed,
                  "outputs that DataParallel can put together are tensors, or vectors, maps, tuples, pairs, "
                  "arrays and optionals of tensors");
    static_assert(!(detail::TensorsIn<Inputs>::borrowed || ...),
                  "DataParallel cannot split an ArrayRef of tensors: pass a std::vector");
    if (!replicas_) return module_->forward(inputs...);
    std::vector<detail::NestedTensor> tensors;
    std::size_t number = 0;
    (detail::collect_tensors(inputs, text("input ", number++), tensors), ...);
    auto const parts = replicas_->scatter(tensors);
    std::vector<std::optional<Output>> outputs(parts.size());
    replicas_->run(parts.size(), [&](std::size_t i, torch::nn::Module& replica) {
      auto next = parts[i].begin();
      std::tuple<detail::PartOf<Inputs>...> const mine{detail::with_tensors(inputs, next)...};
      outputs[i].emplace(
          std::apply([&](auto const&... each) { return static_cast<M&>(replica).forward(each...); }, mine));
    });
    std::vector<std::vector<detail::NestedTensor>> found(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      detail::collect_tensors(*outputs[i], "the output", found[i]);
    }
    auto const gathered = replicas_->gather(found);
    auto next = gathered.begin();
    return detail::with_tensors(*outputs[0], next);
  }
  /// forward().
  template <class... Inputs>
  auto operator()(Inputs const&... inputs) {
    return forward(inputs...);
  }

  [[nodiscard]] M& module() const noexcept { return *module_; }           ///< As it was given.
  [[nodiscard]] M* operator->() const noexcept { return module_.get(); }  ///< Its own members.
  /// The devices in use, by replica; empty where the module runs alone.
  [[nodiscard]] std::span<Device const> device_ids() const noexcept {
    return replicas_ ? replicas_->device_ids() : std::span<Device const>{};
  }

 private:
  std::shared_ptr<M> module_;
  std::unique_ptr<detail::Replicas> replicas_;  // null: the module runs alone
};

}  // namespace libtorch
}  // namespace ddp
