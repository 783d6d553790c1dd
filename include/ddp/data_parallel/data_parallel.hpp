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

/// What a replica has of a batch.
struct ReplicaShare {
  std::size_t replica = 0;     ///< 0 is the module itself
  std::size_t rows = 0;        ///< of this replica's part of the input, along the dimension that is split
  std::size_t total_rows = 0;  ///< of the whole batch: a mean over the batch divides by it
};

/// What a replica's loss is. Both are kept as DataParallel keeps inputs; where the module runs alone, their
/// last owner waits for the stream.
struct ReplicaLoss {
  Value loss;             ///< small: it travels to the output device, where losses are gathered
  Value output_gradient;  ///< by the replica's output; it stays on the replica
};

/// Computes the loss of one replica's output, in the replica's thread, in order on the module's stream.
using ReplicaLossFunction = std::function<ReplicaLoss(Module& replica, Value const& output,
                                                      Value const& target, ReplicaShare const& share)>;

/// What DataParallel is told.
struct DataParallelOptions {
  /// Where replicas are, by logical number; the first has the module itself. Unset: every logical GPU. Empty:
  /// the module runs on its own device, as if it were not wrapped; the same where unset finds no GPU.
  std::optional<std::vector<Device>> device_ids{};
  /// Where outputs are gathered, which may be the CPU. Unset: the first of device_ids.
  std::optional<Device> output_device{};
  std::size_t dim = 0;  ///< along which inputs are split and outputs put together
  /// For forward_loss(): so that large outputs never travel to one device.
  ReplicaLossFunction loss{};
  /// How long a replica waits for the others in what they exchange. Those that share a GPU wait for nobody.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// DataParallel of any module; see there.
class DataParallelModule : public Module {
 public:
  using Options = DataParallelOptions;  ///< What it is told.

  /// Makes the replicas. Throws Error(invalid_argument) naming what is not on device_ids[0], what is wrong
  /// with the list, or a parameter that is listed twice; Error(not_found) for a device that is not there.
  /// Warns where one GPU has less than 75 % of another's memory or cores.
  explicit DataParallelModule(std::shared_ptr<Module> module, Options options = {});
  ~DataParallelModule() override;

  [[nodiscard]] Module& module() const noexcept;  ///< As it was given.
  /// Those in use, by replica; empty where the module runs alone.
  [[nodiscard]] std::span<Device const> device_ids() const noexcept;

  /// The losses, gathered, of `input` and `target`, which are split alike, by Options::loss. Parameter values
  /// reach every replica first. Hooks of the module run in each replica; those of this object belong to
  /// forward() and backward().
  Value forward_loss(Value const& input, Value const& target);
  /// backward() from the gradients that Options::loss returned in the last forward_loss().
  Value backward_loss(GradientReady const& ready = {});
  /// The time for replicas to get the module's values, which forward() begins with: enqueues just that.
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
/// CPU or on any device. backward() adds the gradients of ALL replicas to the module's own, on device_ids[0]:
/// sums, so a loss that is a mean divides by the whole batch; and returns the input's gradient, each tensor
/// gathered where the input's was. Replicas and threads live between steps. Inputs, targets and gradients
/// that are split are kept until the next pass has begun and the devices are through with them: a host that
/// is ahead of its GPUs holds those of all passes on their way. Within a replica of another one the module
/// runs on that replica's device alone.
///
/// Replica 0 is the module itself: what it writes into buffers lasts, what others write is lost. Parameters
/// and buffers must stay where they are in memory. A module that keeps no gradients of its own
/// (Parameter::gradient is empty) gets memory for them, which it keeps. A tied parameter is listed once.
///
/// Everything is in order on module().stream(): inputs are there in that order, the output is too, and an
/// output in host memory is there when forward() returns. The output stays as it is while somebody holds it,
/// where several replicas had a part of it; otherwise it is the module's own, who may write there in its next
/// pass.
///
/// An error of a replica is thrown when all threads have ended: "replica 2 on cuda:2: …", that of the lowest
/// one if there are several. One of forward() changes nothing but buffers; after one of backward() gradients
/// may hold a part of the step: zero them. Both can be called again. Of a CommError nothing recovers.
///
/// It cannot be captured into a CUDA graph: several GPUs in one process would wait for each other.
///
/// Gradients travel while GPUs are in the backward pass: one for which the module's backward() has called
/// `ready` is not written any more. Slower than DistributedDataParallel, which splits nothing in one thread
/// and sends no values. One thread at a time.
template <class M = Module>
class DataParallel final : public DataParallelModule {
 public:
  /// Shares the module.
  explicit DataParallel(std::shared_ptr<M> module, DataParallelOptions options = {})
      : DataParallelModule(module, std::move(options)), typed_(std::move(module)) {}
  /// The program keeps the module, for longer than this object.
  explicit DataParallel(M& module, DataParallelOptions options = {})
      : DataParallel(std::shared_ptr<M>(std::shared_ptr<void>(), &module), std::move(options)) {}

  [[nodiscard]] M& module() const noexcept { return *typed_; }       ///< As it was given.
  [[nodiscard]] M* operator->() const noexcept { return &*typed_; }  ///< Its own members.

 private:
  std::shared_ptr<M> typed_;
};

/// One forward pass of a module over several devices, with replicas made for it: where a program does so
/// once. Errors as DataParallel.
[[nodiscard]] Value data_parallel(std::shared_ptr<Module> module, Value const& input,
                                  DataParallelOptions options = {});

}  // namespace ddp
