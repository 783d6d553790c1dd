// A whole training step of PyTorch's C++ library as one CUDA graph.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ddp/core/export.hpp"
#include "ddp/libtorch/distributed_data_parallel.hpp"
#include "ddp/parallel/step_graph.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch {

/// ddp::StepGraph for a wrapped module, recorded by at::cuda::CUDAGraph: tensors that the step makes live in
/// a memory pool of the graph's, and PyTorch's default generator gives other numbers in each replay.
///
///     torch::Tensor loss;
///     ddp::libtorch::StepGraph step(ddp, [&] {
///       net->zero_grad();
///       loss = net->loss(input, target);
///       loss.backward();
///       optimizer.step();  // at::_fused_adamw_ or another that keeps nothing on the host
///     });
///     for (auto const& batch : batches) { input.copy_(batch.input); target.copy_(batch.target); step.run();
///     }
///
/// What ddp::StepGraph says holds here too. The step runs on a stream of this object, after the work of
/// PyTorch's current stream, and the current stream then waits for it. All tensors that the step reads and
/// the program writes (`input`) keep their memory. Tensors that the recorded call made (`loss`) have new
/// values after each run(), in the same memory. It must not contain what waits for the GPU: item(), copies
/// from it, indexing by masks, and optimizers of torch::optim other than SGD, which count steps on the host.
/// Buffers of batch norm travel in the replays. A module with SyncBatchNorm, whose messages nobody would
/// watch in a replay, runs without a graph, as do modules on a CPU: why_eager() says so.
/// Gradients that add up over several run()s keep their memory too: use zero_grad(false). With
/// zero_grad(true) all micro-steps belong into one step. Parameters that the recorded step does not use are
/// skipped or have a gradient of zeros as they did in the step before it.
class StepGraph {
 public:
  using Options = StepGraphOptions;  ///< As of ddp::StepGraph. make_graph stays empty.

  /// Throws Error(invalid_argument) for a step that is no function, warm_up below 1, or with make_graph.
  StepGraph(DistributedDataParallel& ddp, std::function<void()> step, Options options = {});
  ~StepGraph();
  StepGraph(StepGraph const&) = delete;
  StepGraph& operator=(StepGraph const&) = delete;

  void run();                                                   ///< As ddp::StepGraph::run().
  [[nodiscard]] bool is_recorded() const noexcept;              ///< As there.
  [[nodiscard]] std::string const& why_eager() const noexcept;  ///< As there.
  void record_again() noexcept;                                 ///< As there.

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace libtorch
}  // namespace ddp
