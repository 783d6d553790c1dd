// One process, several devices: a batch is split over replicas of a module, one thread each.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/data_parallel/module.hpp"
#include "ddp/data_parallel/value.hpp"

namespace DDP_EXPORT ddp {

/// A replica's part of a batch.
struct ReplicaShare {
  std::size_t replica = 0;     ///< 0 is the module itself
  std::size_t rows = 0;        ///< of this replica's part of the input, along the dimension that is split
  std::size_t total_rows = 0;  ///< of the whole batch: a mean over the batch divides by it
};

/// The loss of a replica. Both values are kept as DataParallel keeps inputs. Where the module runs alone,
/// their last owner waits for the stream.
struct ReplicaLoss {
  Value loss;             ///< small: it is sent to the output device, where losses are gathered
  Value output_gradient;  ///< with respect to the replica's output; stays on the replica
};

/// Computes the loss of one replica's output, in the replica's thread, in order on the module's stream.
using ReplicaLossFunction = std::function<ReplicaLoss(Module& replica, Value const& output,
                                                      Value const& target, ReplicaShare const& share)>;

/// Settings of DataParallel.
struct DataParallelOptions {
  /// Where replicas are, by logical number; the first device has the module itself. Unset: every logical GPU.
  /// Empty, or unset without a GPU: the module runs on its own device, as if it were not wrapped.
  std::optional<std::vector<Device>> device_ids{};
  /// Where outputs are gathered, which may be the CPU. Unset: the first of device_ids.
  std::optional<Device> output_device{};
  std::size_t dim = 0;  ///< along which inputs are split and outputs put together
  /// For forward_loss(), so that large outputs are never sent to one device.
  ReplicaLossFunction loss{};
  /// How long a replica waits for the others when they exchange data. Replicas that share a GPU never wait.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// DataParallel without the type of its module; see there.
class DataParallelModule : public Module {
 public:
  using Options = DataParallelOptions;  ///< Its settings.

  /// Makes the replicas. Throws Error(invalid_argument) naming what is not on device_ids[0], what is wrong
  /// with the list, or a parameter that is listed twice; Error(not_found) for a device that is not there.
  /// Warns where one GPU has less than 75 % of another's memory or cores.
  explicit DataParallelModule(std::shared_ptr<Module> module, Options options = {});
  ~DataParallelModule() override;

  [[nodiscard]] Module& module() const noexcept;  ///< As it was given.
  /// The devices in use, by replica; empty where the module runs alone.
  [[nodiscard]] std::span<Device const> device_ids() const noexcept;

  /// Splits `input` and `target` alike, computes the loss on each replica with Options::loss, and returns the
  /// gathered losses. Parameter values are copied to every replica first. Hooks of the module run in each
  /// replica; those of this object run in forward() and backward() only.
  Value forward_loss(Value const& input, Value const& target);
  /// backward() from the gradients that Options::loss returned in the last forward_loss().
  Value backward_loss(GradientReady const& ready = {});
  /// Enqueues only the first part of forward(): the copies of the module's values to the replicas. For
  /// measurements.
  void refresh();

  [[nodiscard]] std::vector<Parameter> parameters() override;  ///< The module's own, under their names.
  [[nodiscard]] std::vector<NamedTensor> buffers() override;   ///< The module's own, under their names.
  [[nodiscard]] std::vector<Child> children() override;        ///< The module.

 protected:
  Value do_forward(Value const& input) override;  ///< See DataParallel.
  /// See DataParallel.
  Value do_backward(Value const& output_gradient, GradientReady const& ready) override;
  /// On one device there is nothing to split: a copy of the module alone.
  [[nodiscard]] std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override;

 private:
  class DDP_HIDDEN Engine;
  [[nodiscard]] bool splits() const noexcept;
  std::shared_ptr<Module> module_;
  std::unique_ptr<Engine> engine_;  // null: the module runs alone
  bool split_ = false;              // the last pass, by engine_
  ReplicaLossFunction loss_;
  std::size_t dim_;
  std::optional<Value> alone_gradient_;  // of the last forward_loss(), where the module runs alone
};

/// A module that splits its input over devices.
///
/// forward() gives every replica the module's values, splits the input (scatter()), runs each replica in its
/// thread on its device, and puts the outputs together on the output device (gather()). Inputs may lie on the
/// CPU or on any device. backward() adds the gradients of ALL replicas to the module's own, on device_ids[0].
/// These are sums, so a loss that is a mean must divide by the whole batch. It returns the input's gradient,
/// each tensor gathered where the input's was. Replicas and threads live between steps. Inputs, targets and
/// gradients that are split are kept until the next pass has begun and the devices have finished with them:
/// if the host is ahead of its GPUs, those of all pending passes are kept. Inside a replica of another
/// DataParallel the module runs on that replica's device alone.
///
/// Replica 0 is the module itself: what it writes into buffers is kept, what others write is lost. Parameters
/// and buffers must stay where they are in memory. A module that has no gradients of its own
/// (Parameter::gradient is empty) gets memory for them, which it keeps. List a tied parameter once.
///
/// Everything is in order on module().stream(): inputs must be ready in that order, and the output is too. An
/// output in host memory is complete when forward() returns. If several replicas had a part of the output, it
/// does not change while somebody holds it; otherwise it belongs to the module, which may overwrite it in its
/// next pass.
///
/// An error of a replica is thrown when all threads have ended: "replica 2 on cuda:2: …", that of the lowest
/// one if there are several. An error of forward() changes nothing but buffers. After an error of backward()
/// gradients may hold a part of the step: zero them. Both can be called again, except after a CommError.
///
/// It cannot be captured into a CUDA graph: several GPUs in one process would wait for each other.
///
/// Gradients are sent while GPUs are in the backward pass: once the module's backward() has called `ready`
/// for a gradient, nobody may write it any more. Slower than DistributedDataParallel, which neither splits
/// inputs in one thread nor sends values. One thread at a time.
template <class M = Module>
class DataParallel final : public DataParallelModule {
 public:
  /// Shares the module.
  explicit DataParallel(std::shared_ptr<M> module, DataParallelOptions options = {})
      : DataParallelModule(module, std::move(options)), typed_(std::move(module)) {}
  /// The program owns the module, which must outlive this object.
  explicit DataParallel(M& module, DataParallelOptions options = {})
      : DataParallel(std::shared_ptr<M>(std::shared_ptr<void>(), &module), std::move(options)) {}

  [[nodiscard]] M& module() const noexcept { return *typed_; }       ///< As it was given.
  [[nodiscard]] M* operator->() const noexcept { return &*typed_; }  ///< Its own members.

 private:
  std::shared_ptr<M> typed_;
};

/// One forward pass of a module over several devices, with replicas made for this call only. Errors as
/// DataParallel.
[[nodiscard]] Value data_parallel(std::shared_ptr<Module> module, Value const& input,
                                  DataParallelOptions options = {});

}  // namespace ddp
