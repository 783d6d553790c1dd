// A whole training step as one CUDA graph.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ddp/core/export.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"

namespace DDP_EXPORT ddp {

class RecordedGraph;  // ddp/device/recorded_graph.hpp
struct RecordedStep;

/// How a step becomes a graph.
struct StepGraphOptions {
  /// Calls of run() that run the step as it is, before it is recorded; at least 1, and more until a first
  /// step was synchronised. In these, buckets get their order, libraries choose kernels, and memory is
  /// allocated.
  int warm_up = 3;
  /// Makes the object that records the step, for libraries that have their own; empty: CUDA's stream capture.
  std::function<std::shared_ptr<RecordedGraph>()> make_graph{};
};

/// Runs a training step, and from some call on replays it as a CUDA graph: forward and backward pass, the
/// all-reduce of every bucket, and the optimizer, without work of the host, so that ranks drift apart less.
///
///     ddp::StepGraph step(ddp, [&] { forward(); backward(); ddp.synchronize(); optimizer(); });
///     for (auto const& batch : batches) { load_into(input, batch); step.run(); }
///
/// A replay does on the device what the recorded call did, in the same memory and with the same arguments of
/// kernels, and calls nothing of the program. So inputs are copied into the same memory before run(), and
/// what changes from step to step (a learning rate) lies in memory of the device. The step must not wait for
/// the device nor allocate memory with cudaMalloc(), and computes on the stream of `ddp`. This must not be
/// CUDA's default stream, which no thread may use while the step is recorded. Memory that the step uses must
/// stay as it is between replays; where shapes change, call record_again(), or have a StepGraph for each.
/// Comm hooks, on_bucket_ready() and sync_buffers() are recorded with what they enqueue in that one call, so
/// the step marks the buffers that it changes. Operations of other communicators do not belong into the step:
/// nobody would watch them.
///
/// The step calls synchronize() once and marks all its gradients. Or it runs under no_sync() as a whole, for
/// any number of micro-steps before a step that sends the sum. A step may also contain both. set_weight() is
/// called before run(), and then before each run() of this object.
///
/// Ranks record together. If one cannot, or if the step throws while it is recorded, all go on without a
/// graph: run() calls the step a second time, as it is, and why_eager() says why, on every rank. They also do
/// without one on CPUs, on GPUs that ranks share, with parameters on several devices,
/// with options for which the host looks at each step (Unused::error, Nonfinite::error, uneven,
/// verify_every), and while a timeline is written.
///
/// Each replay that sends counts as one operation of the communicator: with its deadline, and compared
/// between ranks before it starts; between hosts it is compared by the first message of the next step. A rank
/// that is lost, that replays another number of times, or that runs the step without the graph, is named on
/// every rank by the error that run() or a wait for the stream throws.
///
/// One thread at a time. `ddp` must outlive it.
class StepGraph {
 public:
  using Options = StepGraphOptions;  ///< See StepGraphOptions.

  /// Throws Error(invalid_argument) for a step that is no function, or warm_up below 1.
  StepGraph(DistributedDataParallel& ddp, std::function<void()> step, Options options = {});
  ~StepGraph();
  StepGraph(StepGraph const&) = delete;
  StepGraph& operator=(StepGraph const&) = delete;

  /// One step. Collective. Throws what the step throws, and CommError. Waits for the device in the call that
  /// records, and later if the host would be more than two replays ahead, under ddp-launch --survive one.
  void run();

  /// Whether run() replays a graph.
  [[nodiscard]] bool is_recorded() const noexcept { return recorded_ != nullptr; }
  /// Why run() goes on without a graph; empty before it was tried, and with a graph.
  [[nodiscard]] std::string const& why_eager() const noexcept { return why_eager_; }
  /// Forgets the graph: the next calls of run() warm up and record again. For a step whose shapes or memory
  /// change. On every rank.
  void record_again() noexcept;

 private:
  [[nodiscard]] std::unique_ptr<RecordedStep> record();

  DistributedDataParallel& ddp_;
  std::function<void()> step_;
  Options options_;
  int warm_up_;  // calls that are left
  std::unique_ptr<RecordedStep> recorded_;
  std::string why_eager_;
};

}  // namespace ddp
