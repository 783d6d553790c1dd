// A Reducer on a communicator and streams of its own: a failed step breaks the streams that waited for it.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "reducer/reducer.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {

/// Of all ranks, each a process.
class OwnReducer {
 public:
  template <class T>
  explicit OwnReducer(DeviceToy<T>& model, DistributedDataParallelOptions const& options = {})
      : OwnReducer(model, options, world().communicator().split(all_ranks(world().size()))) {}
  /// Whose steps are committed.
  template <class T>
  OwnReducer(DeviceToy<T>& model, DistributedDataParallelOptions const& options,
             std::shared_ptr<StepCommits> commits)
      : OwnReducer(model, options, world().communicator().split(all_ranks(world().size())),
                   std::move(commits)) {}
  /// With a communicator of all ranks that has another deadline than the world's.
  template <class T>
  OwnReducer(DeviceToy<T>& model, DistributedDataParallelOptions const& options,
             std::unique_ptr<Communicator> communicator, std::shared_ptr<StepCommits> commits = nullptr)
      : communicator_(std::move(communicator)),
        compute_(make_compute_stream(world().device())),
        comm_(make_comm_stream(world().device())),
        reducer_(ReducerRanks(world().next_name("own"), world().shared_control(), all_ranks(world().size()),
                              std::chrono::seconds(30)),
                 {{world().device(), &backend_of(*communicator_), compute_.get(), comm_.get(), commits,
                   commits ? zeros(Shape{1}, DType::f32, world().device()) : Tensor()}},
                 model.parameters(), options) {}
  Reducer* operator->() { return &reducer_; }
  [[nodiscard]] Communicator const& communicator() const { return *communicator_; }

  /// Marks the last `count` parameters, the last one first, and ends the step.
  void step(std::size_t count) {
    std::size_t const all = reducer_.parameters().size();
    for (std::size_t p = all; p-- > all - count;) reducer_.gradient_ready(p);
    reducer_.synchronize();
  }
  /// A step of all parameters, and an optimizer behind it, which makes them zero.
  void train() {
    step(reducer_.parameters().size());
    for (Parameter const& parameter : reducer_.parameters()) zero_fill(parameter.value, *compute_);
  }
  void wait() { compute_->synchronize(); }

 private:
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> comm_;
  Reducer reducer_;
};

}  // namespace ddp::testing
