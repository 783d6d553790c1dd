// The main object: keeps a model's replicas equal while they train on different data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/parallel/world.hpp"
#include "ddp/reducer/bucket_hooks.hpp"
#include "ddp/reducer/bucket_plan.hpp"
#include "ddp/reducer/no_sync_guard.hpp"
#include "ddp/reducer/options.hpp"
#include "ddp/reducer/parameter.hpp"
#include "ddp/reducer/sharding.hpp"
#include "ddp/reducer/step_statistics.hpp"

namespace ddp {
class Reducer;  // which does all this
class StatisticsReport;
struct ReducerAccess;  // of the runtime
}  // namespace ddp

namespace DDP_EXPORT ddp {

class AutogradSupport;

/// Averages gradients over ranks in buckets, while the backward pass still runs.
///
/// A step: the backward pass calls gradient_ready(i) when the gradient of parameter i is complete;
/// synchronize() then makes the world's compute stream wait for the averages. Under a no_sync() guard nothing
/// is sent, and gradients add up on this rank.
///
/// Several threads may call functions, as an autograd library does; a call waits until calls of other threads
/// have returned. They run code of the program (bind_gradient, owners of sources), which must not wait for
/// another thread that calls this object. An error of the step (a failed group, a parameter marked twice, an
/// unused one with Unused::error) makes the object unusable on every rank, and every later call says so: by
/// the same CommError where the group failed, otherwise by Error(invalid_state). Calls with wrong arguments
/// or at the wrong time throw an Error for that call alone and change nothing.
class DistributedDataParallel {
 public:
  using Options = DistributedDataParallelOptions;  ///< See there.

  /// Collective. First checks, before anything else is sent, that all ranks have the same names, shapes,
  /// dtypes, layouts and device kinds in the same order; if not, throws CommError(mismatch) with the same
  /// text on every rank. Then gives every rank the values of rank 0's parameters and Options::buffers, and
  /// binds gradients. The memory of parameters, buffers and gradients must outlive this object. Another
  /// object that binds gradients of the same values takes them over: synchronize() of this one then throws
  /// Error(invalid_state), since its averages would not reach the model.
  DistributedDataParallel(World world, std::vector<Parameter> parameters, Options options = {});
  ~DistributedDataParallel();
  /// The moved-from object may only be destroyed or assigned to.
  DistributedDataParallel(DistributedDataParallel&& other) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&& other) noexcept;  ///< As the constructor.

  /// The gradient of parameter `index` (as given to the constructor) is written: on a GPU by work that is
  /// enqueued on World::stream(), or for which that stream has been made to wait. (Or on the stream that was
  /// given to compute_on(); so below.) Starts a bucket when it is full.
  void gradient_ready(std::size_t index);

  /// The same for a gradient in memory of the program's own, as an autograd library makes it: `source` has
  /// the parameter's count, dtype and device, and its elements in the parameter's order of memory. When its
  /// bucket is sent, it is copied there with the others, on the communication stream; nothing is copied if it
  /// is the memory that was bound, or if the bucket holds nothing else and is sent from there. The result is
  /// in the bound memory, as ever. Needs GradientStorage::arena.
  ///
  /// `source` is kept, and must not change, until it has been read; at the latest synchronize() makes the
  /// compute stream wait for that. So an allocator of the compute stream may use the memory again after
  /// synchronize(). Another stream must be made to wait first. Memory of zeros() goes back to a pool of its
  /// own, so whoever passes such memory keeps it until the compute stream is through.
  ///
  /// A parameter that is marked several times in a step (allow_repeated_ready) has its gradient where the
  /// last mark says. Under no_sync() `source` is not kept: the program adds up, and passes the sum in the
  /// step that sends it; synchronize() throws if it does not.
  void gradient_ready(std::size_t index, Tensor source);

  /// This rank has no gradient for parameter `index` in this step: it counts as zero already now, not only at
  /// synchronize(), so that its bucket need not wait. Under no_sync() it does nothing.
  void no_gradient(std::size_t index);

  /// Ends the step: parameters not marked count as zero on this rank; the compute stream waits for all
  /// averages. On a CPU that is the calling thread. On a GPU the calling thread waits until all ranks have
  /// begun this step, and throws if one began another step, or if only some have a weight: nothing that is
  /// enqueued afterwards may run while ranks are in different steps. So ranks must end the steps of several
  /// objects in the same order. Inside no_sync() it only ends the micro-step. While a compute stream is
  /// captured into a CUDA graph, it throws Error(invalid_state), as does the step's first gradient_ready(): a
  /// step is captured by StepGraph.
  void synchronize();

  /// The program gives the step up, for example after an exception in its backward pass: every rank gets
  /// CommError(aborted) with this rank and `reason`, at the latest in synchronize(), and this object is
  /// unusable as after any error of a step. Outside of a step, and in a micro-step, it does nothing.
  void abandon_step(std::string_view reason) noexcept;

  /// Whether a synchronised step has begun, and neither ended nor failed.
  [[nodiscard]] bool in_step() const noexcept;

  /// From now on the program computes on `stream`, instead of World::stream() or what was given before, on
  /// its device: one on which parameters lie. On a CPU it must be the calling thread. `stream` must live
  /// until another one is given or this object is destroyed. In the middle of a step, communication also
  /// waits for the former stream. Between steps and micro-steps the program orders the two itself.
  void compute_on(Stream& stream);

  /// This rank's weight (samples, tokens) in the next synchronised step: the result is Σ wᵢgᵢ / Σ wᵢ. Call it
  /// before the step's first gradient_ready(). It holds for one step; a step without it follows
  /// Options::reduction. The gradients of a rank with weight 0 do not matter: NaN on it is in no sum and is
  /// not reported, and with Unused::error it may leave parameters out. Throws Error(invalid_argument) for a
  /// negative number, NaN, and one so large that the sum over ranks might be infinite.
  void set_weight(double weight);

  /// Collective, before the first synchronised step: buckets are reduced by `hook` from now on, not as
  /// Options::reduction and set_weight() say (which the hook is told). The last hook given counts; one
  /// without a function removes it. Throws CommError(mismatch) on every rank, and changes nothing, if names
  /// differ.
  void set_comm_hook(CommHook hook);

  /// This rank has no more data, and Options::uneven is set: it takes part in the steps of ranks that have
  /// data, with gradients of zeros and weight 0 (also if it has added up some under no_sync()), until every
  /// rank has called join(); then all return together. Between steps; waits on the host. After each of these
  /// steps `update` is called, where the program does what it does after its own: optimizer.step(), so that
  /// weights and the optimizer's state stay equal on every rank. What ranks exchange between two steps, as in
  /// sync_buffers(), belongs into `before_step`, which is called once more when no rank has data left. A rank
  /// in join() cannot take part in exchanges inside a forward pass, as in batch norm over all ranks. Throws
  /// Error(invalid_state) with Uneven::refuse and in the middle of a step; with Uneven::error, where other
  /// ranks have data, the error that they get too.
  void join(std::function<void()> const& update, std::function<void()> const& before_step = {});

  /// Between steps: from now on `update` is called for every bucket of a synchronised step, so that a
  /// parameter can be updated while later buckets travel. It runs beside the backward pass, on a stream for
  /// which synchronize() makes the compute stream wait; so the rest of the pass must not need the old values
  /// of a parameter whose gradient is complete. A parameter may be split over buckets. One that no rank has
  /// marked has a gradient of zeros. With clip_norm and Nonfinite::flag all calls come at the end of the
  /// step, when these are known. An empty function ends it. Refused with Unused::error, Nonfinite::error
  /// and Uneven::error: they could fail a step after its first updates. An error of another rank still can.
  void on_bucket_ready(BucketReady update);

  /// With Sharding::optimizer: what this rank updates, in the order of the buckets. Between them the ranks
  /// have every element once. An optimizer keeps its state by slice, and, for parameters of a 16-bit type,
  /// values in f32. After a step only the gradients of these slices are averages; elsewhere they mean
  /// nothing, so clear them before the next backward pass. Throws Error(invalid_state) without the option.
  [[nodiscard]] std::span<Slice const> slices() const;

  /// As on_bucket_ready(), with its rules, for a sharded optimizer: `update` is called for each slice whose
  /// averages are there, in the backward pass, and the new values travel to the other ranks with the next
  /// bucket. After synchronize() the compute stream has all of them.
  void on_slice_ready(SliceReady update);

  /// Collective, between steps, for a sharded optimizer that waits for the whole step: calls `update` for
  /// each slice, with the compute stream, and gives the new values to the other ranks, those of a bucket
  /// while the next is updated. Work that is enqueued afterwards finds all of them. Throws
  /// Error(invalid_state) for a second call after one step, and with on_slice_ready().
  void update_slices(SliceReady const& update);

  /// With Options::statistics: the statistics of the latest step for which all is known, some steps ago;
  /// nullopt before the first. Never waits, and makes no call of CUDA. Throws Error(invalid_state) without
  /// the option. A line for each step that was measured is in the file of WorldOptions::statistics.
  [[nodiscard]] std::optional<StepStatistics> statistics() const;
  /// The forward pass begins, for StepStatistics::forward_ms. Need not be called; without the option, and in
  /// the middle of a step, it does nothing. With it, it throws Error(invalid_state) while a compute stream is
  /// captured into a CUDA graph.
  void begin_forward();

  /// While the guard lives, gradients only add up locally. Guards nest. For loops that decide at run time,
  /// no_sync(false) guards nothing, and a guard may be assigned to.
  [[nodiscard]] NoSyncGuard no_sync(bool when = true);

  /// Sets all gradients to zero, for programs that add into them. Not inside a step.
  void zero_gradients();

  /// Whether any rank marked parameter `index` in the last synchronised step. If not, its gradient is zero
  /// and an optimizer should skip it. Waits until every rank has ended the step's backward pass, and not
  /// always for the averages: it is no wait for the step.
  [[nodiscard]] bool has_gradient(std::size_t index);

  /// The same for all parameters without waiting: u8[parameters], 1 for those that any rank marked in the
  /// last synchronised step, 0 before the first. In memory of the device whose gradients are sent last;
  /// without a GPU that is the host's. For work that is enqueued on the compute stream between synchronize()
  /// and the next step's first gradient_ready(). Ask in each step: a rebuild of the buckets may move it.
  [[nodiscard]] TensorView used_parameters() const;

  /// With Options::clip_norm: f64[1], the norm of all averages of the last synchronised step before they were
  /// clipped. In memory of the parameters' device, for work that is enqueued on the compute stream between
  /// synchronize() and the next step's first gradient_ready(), or for copy_elements(). The function given to
  /// on_bucket_ready() may call it, in any thread. Throws Error(invalid_state) without the option.
  [[nodiscard]] TensorView gradient_norm() const;

  /// With Nonfinite::flag: f32[1], 1 if a gradient of any rank was not finite in the last synchronised step,
  /// or, with clip_norm, if the norm is not; otherwise 0. As gradient_norm() otherwise. PyTorch's fused
  /// optimizers take it as found_inf.
  [[nodiscard]] TensorView found_nonfinite() const;

  /// Under ddp-launch --survive on a GPU, whose host runs ahead of it: f32[1], 1 if the last synchronised
  /// step broke, since a rank was lost, and 0 if it is committed; with Nonfinite::flag as found_nonfinite()
  /// too. Where it is 1, the optimizer and everything else that changes what ranks have alike must change
  /// nothing, as PyTorch's fused optimizers do with found_inf. On the parameters' device, for work that is
  /// enqueued on the compute stream between synchronize() and the next step's first gradient_ready(); updates
  /// in the backward pass may read it too, and find what it says of the step before. The same memory in all
  /// steps; 0 after World::rebuild(). An empty view where no update can meet a broken step: on a CPU, without
  /// --survive, and with parameters on several devices, where there is no World::rebuild().
  [[nodiscard]] TensorView uncommitted() const;

  /// With Nonfinite::flag: which gradients were not finite in the last synchronised step. Waits for the
  /// step's communication.
  [[nodiscard]] std::vector<NonfiniteGradient> nonfinite_gradients();

  /// The values of parameter `index` lie elsewhere from now on: with the same shape, dtype, device and
  /// strides. parameters() shows it; what was made of parameters() before does not.
  void rebind_value(std::size_t index, TensorView const& value);

  /// Buffer `index` of Options::buffers has changed on this rank: the next sync_buffers() sends it.
  /// Every rank marks the same buffers.
  void mark_buffer_dirty(std::size_t index);
  void mark_buffers_dirty();  ///< All of them.

  /// Before the forward pass of a synchronised step: gives every rank the first rank's values of the buffers
  /// that were marked since the last call, or their averages, as Options::buffer_sync says. For each device
  /// one message (for averages, one for each type) travels on the communication stream, and the compute
  /// stream waits for it. On a CPU that is the calling thread. Nothing is sent if nothing is marked. Under
  /// no_sync(), and with BufferSync::never, it does nothing, and the marks stay.
  ///
  /// If ranks marked different buffers, all get CommError(mismatch), at the latest from the step's
  /// synchronize(), and on a CPU no buffer has changed. In the middle of a step it throws
  /// Error(invalid_state), as it does while a compute stream is captured into a CUDA graph.
  void sync_buffers();

  /// Options::buffers.
  [[nodiscard]] std::span<NamedTensor const> buffers() const noexcept;
  /// As given to the constructor and to rebind_value().
  [[nodiscard]] std::span<Parameter const> parameters() const noexcept;
  /// Synchronised steps that are done, since this object was made.
  [[nodiscard]] std::uint64_t steps() const;
  /// Which gradients share a bucket: another plan after the first step, unless Options::rebuild_buckets is
  /// off.
  [[nodiscard]] BucketPlan const& plan() const noexcept;
  /// All-reduces of gradients in a step: one a bucket, or more with in_place if gradients of a bucket are not
  /// neighbours in memory.
  [[nodiscard]] std::size_t messages() const;

 private:
  friend class AutogradSupport;
  friend class StepGraph;
  friend struct ReducerAccess;
  struct DDP_HIDDEN Parts;
  struct DDP_HIDDEN Engine;
  void report_progress();
  void settle_last_step();
  [[nodiscard]] std::unique_ptr<StatisticsReport> report_of(std::string const& name) const;
  void build(Parts& parts, std::string const& name, std::vector<Parameter> parameters, bool gives_values);
  std::unique_ptr<Engine> engine_;
  Reducer* reducer_ = nullptr;  // in *engine_
};

}  // namespace ddp
