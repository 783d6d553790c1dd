// The main object: keeps a model's replicas equal while they train on different data.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/parallel/world.hpp"
#include "ddp/reducer/parameter.hpp"
#include "ddp/reducer/reducer.hpp"

namespace DDP_EXPORT ddp {

/// Averages gradients over ranks in buckets, while the backward pass still runs.
///
/// A step: the backward pass calls gradient_ready(i) when the gradient of parameter i is complete;
/// synchronize() then makes the world's compute stream wait for the averages. Under a no_sync() guard nothing
/// is sent, and gradients add up on this rank.
///
/// One thread at a time. An error of the step (a failed group, a parameter marked twice, an unused one with
/// Unused::error) makes the object unusable on every rank, and every later call says so. Calls with wrong
/// arguments or at the wrong time throw an Error for that call alone and change nothing.
class DistributedDataParallel {
 public:
  using Options = ReducerOptions;  ///< See ReducerOptions.

  /// Collective. First checks, before anything else is sent, that all ranks have the same names, shapes,
  /// dtypes, layouts and device kinds in the same order; if not, throws CommError(mismatch) with the same
  /// text on every rank. Then gives every rank the values of rank 0's parameters and buffers, and binds
  /// gradients. The memory of parameters, buffers and gradients must outlive this object.
  DistributedDataParallel(World world, std::vector<Parameter> parameters, Options options = {});
  /// The same with buffers.
  DistributedDataParallel(World world, std::vector<Parameter> parameters, std::vector<NamedTensor> buffers,
                          Options options = {});
  ~DistributedDataParallel();
  /// The moved-from object may only be destroyed or assigned to.
  DistributedDataParallel(DistributedDataParallel&& other) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&& other) noexcept;  ///< As the constructor.

  /// The gradient of parameter `index` (as given to the constructor) is written: on a GPU by work that is
  /// enqueued on World::stream(), or for which that stream has been made to wait. Starts a bucket when it is
  /// full.
  void gradient_ready(std::size_t index) { reducer_->gradient_ready(index); }

  /// Ends the step: parameters not marked count as zero on this rank; the compute stream waits for all
  /// averages. On a CPU that is the calling thread. On a GPU the calling thread waits until all ranks have
  /// begun this step, and throws if one began another step, or if only some have a weight: nothing that is
  /// enqueued afterwards may run while ranks are in different steps. So ranks must end the steps of several
  /// objects in the same order. Inside no_sync() it only ends the micro-step. While a compute stream is
  /// captured into a CUDA graph, it throws Error(invalid_state), as does the step's first gradient_ready().
  void synchronize() {
    reducer_->synchronize();
    if (auto const now = std::chrono::steady_clock::now(); now >= next_report_) report_progress(now);
  }

  /// This rank's weight (samples, tokens) in the next synchronised step: the result is Σ wᵢgᵢ / Σ wᵢ. Call it
  /// before the step's first gradient_ready(). It holds for one step; a step without it follows
  /// Options::reduction.
  void set_weight(double weight) { reducer_->set_weight(weight); }

  /// While the guard lives, gradients only add up locally. Guards nest. For loops that decide at run time,
  /// no_sync(false) guards nothing, and a guard may be assigned to.
  [[nodiscard]] NoSyncGuard no_sync(bool when = true) { return reducer_->no_sync(when); }

  /// Sets all gradients to zero, for programs that add into them. Not inside a step.
  void zero_gradients() { reducer_->zero_gradients(); }

  /// Whether any rank marked parameter `index` in the last synchronised step. If not, its gradient is zero
  /// and an optimizer should skip it. Waits for the step's communication.
  [[nodiscard]] bool has_gradient(std::size_t index) { return reducer_->has_gradient(index); }

  /// Buffer `index` (as given to the constructor) has changed on this rank: the next sync_buffers() sends it.
  /// Every rank marks the same buffers.
  void mark_buffer_dirty(std::size_t index);
  void mark_buffers_dirty();  ///< All of them.

  /// Before the forward pass of a synchronised step: gives every rank the first rank's values of the buffers
  /// that were marked since the last call, or their averages, as Options::buffers says. For each device one
  /// message (for averages, one for each type) travels on the communication stream, and the compute stream
  /// waits for it. On a CPU that is the calling thread. Nothing is sent if nothing is marked. Under
  /// no_sync(), and with BufferSync::never, it does nothing, and the marks stay.
  ///
  /// If ranks marked different buffers, all get CommError(mismatch), at the latest from the step's
  /// synchronize(), and on a CPU no buffer has changed. In the middle of a step it throws
  /// Error(invalid_state), as it does while a compute stream is captured into a CUDA graph.
  void sync_buffers();

  /// As given to the constructor.
  [[nodiscard]] std::span<NamedTensor const> buffers() const noexcept;
  /// As given to the constructor.
  [[nodiscard]] std::span<Parameter const> parameters() const noexcept { return reducer_->parameters(); }
  /// For tests, statistics and hooks.
  [[nodiscard]] Reducer& reducer() noexcept { return *reducer_; }

 private:
  struct DDP_HIDDEN Engine;
  void report_progress(std::chrono::steady_clock::time_point now);
  void build(std::string const& name, std::vector<Rank> const& members, std::span<Device const> devices,
             std::vector<Parameter> parameters, std::span<NamedTensor const> buffers, Options const& options);
  std::unique_ptr<Engine> engine_;
  Reducer* reducer_ = nullptr;  // in *engine_
  std::chrono::steady_clock::time_point next_report_;
};

}  // namespace ddp
