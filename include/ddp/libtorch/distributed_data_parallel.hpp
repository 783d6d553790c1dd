// A module of PyTorch's C++ library whose gradients are averaged over ranks while backward() runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "ddp/parallel/world.hpp"

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}
namespace torch::nn {
class Module;
}

namespace DDP_EXPORT ddp {
namespace libtorch {

/// World::device() as PyTorch names it, for Module::to(). Throws Error(unsupported) for a GPU if this ddp or
/// PyTorch was built without CUDA.
[[nodiscard]] c10::Device device(World const& world);

/// How a module is wrapped.
struct DistributedDataParallelOptions {
  /// Buckets, averages, unused parameters, buffers. `storage` must stay `arena`. On a GPU `allocate` is
  /// PyTorch's caching allocator unless it is set.
  ddp::DistributedDataParallel::Options runtime{};
  /// What happens to a sparse gradient, as of an embedding with `sparse(true)`.
  enum class Sparse {
    refuse,                   ///< backward() throws Error(unsupported) with the parameter's name
    densify,                  ///< it is made dense, and so it stays
  } sparse = Sparse::refuse;  ///< what happens to it
  /// The gradient of a parameter that no rank used stays as it is: undefined, so optimizers skip it, or kept
  /// from an earlier step. In a step in which this rank has not used all parameters, backward() waits for the
  /// averages to find out. If false, nothing waits: undefined gradients become zeros, and kept ones are
  /// averaged again. With clip_norm all kept gradients are averaged and clipped with the others.
  bool skip_unused = true;
};

class DistributedDataParallel;
class GradientBucket;
class ShardedOptimizer;
class StepGraph;

/// As ddp::CommHook.
struct CommHook {
  std::string name;                                   ///< as there
  std::function<void(GradientBucket const&)> reduce;  ///< as there
};

/// Updates these parameters, whose grad() is averaged, with operations on PyTorch's current stream. Autograd
/// does not record them.
using BucketReady = std::function<void(std::vector<at::Tensor> const& parameters)>;

/// While it lives, backward() only adds to the gradients of this rank. It may outlive what it guards.
class NoSyncGuard {
 public:
  NoSyncGuard() noexcept = default;                      ///< Guards nothing.
  NoSyncGuard(NoSyncGuard&& other) noexcept = default;   ///< The moved-from guard guards nothing.
  NoSyncGuard& operator=(NoSyncGuard&& other) noexcept;  ///< Ends what it guarded, then as above.
  ~NoSyncGuard();

 private:
  friend class DistributedDataParallel;
  explicit NoSyncGuard(std::shared_ptr<int> depth) noexcept;
  std::shared_ptr<int> depth_;
};

/// Keeps the replicas of a module equal while they train on different data.
///
/// After the constructor nothing in the training loop changes: hooks on the module's parameters see each
/// gradient that backward() has accumulated and send full buckets meanwhile; when backward() returns, the
/// current stream waits for the averages, and `grad()` of each parameter is a part of a bucket. Both forms of
/// zero_grad() work: after zero_grad(true) autograd makes new tensors, which are copied into the bucket once;
/// after zero_grad(false) it adds into the bucket, and nothing is copied.
///
/// Each backward() is one step on every rank; a backward() that only some ranks call belongs under no_sync().
/// If since their last steps some ranks have changed a parameter (or cleared a gradient) and others have not,
/// they are at different places of their loops: all get an error that names a rank. Several backward()
/// without zero_grad() between them add up: where ranks have kept a gradient, the average is of what they
/// have accumulated. Errors leave backward() on every rank: those of ddp::DistributedDataParallel, and what a
/// custom function threw on one of them, with that rank and its message; then this object is unusable.
/// Gradients stay valid when it is destroyed.
class DistributedDataParallel {
 public:
  using Options = DistributedDataParallelOptions;  ///< How a module is wrapped.

  /// Collective. Compares parameters and buffers over ranks, and gives every rank the values of rank 0, as
  /// ddp::DistributedDataParallel. Takes the parameters that require gradients now; a tied one by its first
  /// name. If a parameter is later frozen, unfrozen, added, or moved to another dtype, device or layout, the
  /// next backward() that notices it throws. New memory of the same form, as torch::load() makes, is no
  /// error. `module` must outlive this object unless a shared_ptr owns it, which this object then shares.
  /// Throws Error(invalid_argument) for a module without such parameters or on another GPU than the world's,
  /// Error(invalid_state) for one that is wrapped already, Error(unsupported) for element types that cannot
  /// be reduced or sent.
  DistributedDataParallel(World world, torch::nn::Module& module, Options options = {});
  /// Removes the hooks. Not during backward().
  ~DistributedDataParallel();
  /// The moved-from object may only be destroyed or assigned to.
  DistributedDataParallel(DistributedDataParallel&& other) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&& other) noexcept;  ///< As the constructor.

  /// While the guard lives, nothing is sent. What counts is where backward() is called, not forward(). The
  /// next backward() without a guard sends the sums, also of parameters that only guarded ones used.
  [[nodiscard]] NoSyncGuard no_sync(bool when = true);
  /// As ddp::DistributedDataParallel::set_weight(), before backward().
  void set_weight(double weight);
  /// Collective, before the first backward(): buckets are reduced by `hook`, as with
  /// ddp::DistributedDataParallel::set_comm_hook(). On a CPU backward() waits for each bucket's gradients.
  void set_comm_hook(CommHook hook);
  /// Between steps: from now on backward() calls `update` with parameters whose gradients are averaged, each
  /// once a step, while later ones still travel. The last call of a step comes at its end; all do where ranks
  /// compare their weights (Options::runtime.verify_every). It replaces optimizer.step(), so the optimizer
  /// must be able to update only some of its parameters. The rest of backward() must not need parameters
  /// whose gradient is complete, as custom functions do that read them without saving them; for saved ones
  /// autograd reports the change. Parameters that no rank used are left out as Options::skip_unused says. In
  /// no_sync() nothing is called. On a CPU `update` runs in a thread of the runtime, and may call only
  /// gradient_norm() and found_nonfinite() of this object. Throws Error(invalid_argument) with
  /// Options::runtime.allow_repeated_ready, Unused::error, Nonfinite::error or Uneven::error.
  void on_bucket_ready(BucketReady update);
  /// As ddp::DistributedDataParallel::join(): `update` is called with grad() of the parameters as after
  /// zero_grad() and backward(), for optimizer.step(). With Options::skip_unused a parameter that no rank
  /// used has none; a program with zero_grad(false) sets skip_unused to false. Buffers are sent as in the
  /// steps of the others: rank 0's, even if rank 0 has no data. A module with SyncBatchNorm is refused with
  /// Options::runtime.uneven.
  void join(std::function<void()> const& update);
  /// As ddp::DistributedDataParallel::begin_forward(). What steps took is in runtime().statistics().
  void begin_forward();
  /// As ddp::DistributedDataParallel::gradient_norm(), a scalar of this rank's device; of the last step.
  [[nodiscard]] at::Tensor gradient_norm() const;
  /// As ddp::DistributedDataParallel::found_nonfinite(), as found_inf of at::_fused_adamw_ wants it.
  [[nodiscard]] at::Tensor found_nonfinite() const;
  /// As ddp::DistributedDataParallel::uncommitted(), a scalar; undefined where that is empty. FusedOptimizer
  /// asks for it by itself. Others take it as found_inf, or need Options::runtime.await_commit.
  [[nodiscard]] at::Tensor uncommitted() const;
  /// Ends a step on a rank where no backward() reached a parameter, so that the others need not wait for it;
  /// after a backward() that did, the step is over already. Inside no_sync() it does nothing.
  void synchronize();
  /// Collective, between steps: gives every rank the values of all of rank 0's buffers
  /// (Options::runtime.buffer_sync). The end of each step sends those that some rank has changed, so call
  /// this only before a forward pass if something else has changed buffers since. A buffer counts as changed
  /// if its tensor's version, or that of another buffer of the same module, has changed; buffers of a module
  /// with running_mean or running_var are always sent. Ranks tell each other in the step's last message which
  /// others have changed; on a GPU the host does not wait for it, and sends those at the end of the next
  /// step. Code that writes through pointers calls mark_buffers_dirty().
  void sync_buffers();
  /// All buffers have changed on this rank: the next step sends them.
  void mark_buffers_dirty();

  /// The object that does the work: plans, statistics, parameters by index.
  [[nodiscard]] ddp::DistributedDataParallel& runtime() noexcept;

 private:
  friend class ShardedOptimizer;
  friend class StepGraph;
  class DDP_HIDDEN Engine;
  std::shared_ptr<Engine> engine_;
};

}  // namespace libtorch
}  // namespace ddp
