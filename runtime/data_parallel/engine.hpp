// The steps of DataParallel.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <vector>

#include "core/system/own_process.hpp"
#include "data_parallel/deferred_release.hpp"
#include "data_parallel/replicas/replica_set.hpp"
#include "data_parallel/scatter_plan.hpp"
#include "data_parallel/tensor_pool.hpp"
#include "ddp/data_parallel/data_parallel.hpp"

namespace ddp {

/// Throws: backward_loss() came without a forward_loss() that succeeded.
[[noreturn]] void refuse_backward_loss();

/// What happens between scatter and gather, over replicas that live between steps.
class DataParallelModule::Engine {
 public:
  Engine(std::shared_ptr<Module> module, std::vector<Device> devices, Options options);
  ~Engine();
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;

  OwnProcess maker;

  /// Whether the calling thread is in the pass of a replica, of any engine.
  [[nodiscard]] static bool in_replica() noexcept;

  [[nodiscard]] ReplicaSet& replicas() noexcept { return replicas_; }

  /// `target`: null without a loss on the replicas.
  [[nodiscard]] Value forward(Value const& input, Value const* target);
  /// `output_gradient`: null for those that the loss function returned. `ready` may be empty.
  [[nodiscard]] Value backward(Value const* output_gradient, GradientReady const& ready);
  void refresh();

 private:
  /// Drops the results of the last pass, so that backward() throws. The inputs of the pass stay.
  void forget() noexcept;
  /// Hands the inputs of the last pass to kept_, which drops them when the devices have finished with them.
  void let_go_of_given();
  /// Calls `enqueue()` with all streams ordered behind replica 0's. If it throws, replica 0's stream still
  /// waits for the work that the others have enqueued, so that the program may free memory in that order.
  template <class Enqueue>
  [[nodiscard]] Value in_order(Enqueue const& enqueue);
  [[nodiscard]] Scattered split_target(Value const& target, Scattered const& inputs);
  [[nodiscard]] Value put_together(Gathered const& gathered);
  /// The memory for input gradients on `device`.
  [[nodiscard]] TensorPool& memory_on(Device device);

  Options options_;
  ReplicaSet replicas_;
  // Inputs of the pass, of which this may be the last owner.
  Value input_;
  Value target_;
  Value gradient_;                       // of the last backward()
  std::vector<Value> losses_;            // by replica
  std::vector<Value> output_gradients_;  // by the loss function, by replica
  DeferredRelease kept_;                 // from earlier passes
  std::vector<TensorPool> inputs_;       // by replica
  std::vector<TensorPool> targets_;      // by replica
  std::vector<TensorPool> gradients_;    // of outputs, by replica
  TensorPool output_;
  std::list<TensorPool> input_gradients_;  // one for each device that inputs came from
  std::vector<Value> parts_;               // of the last forward(), one for each replica that had a part
  std::vector<Value> outputs_;
  std::vector<Value> part_gradients_;  // of the last backward()
  bool with_loss_ = false;
  bool warned_ = false;
};

}  // namespace ddp
