// Connects a bucket plan and a ready tracker to streams and a communicator.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/core/export.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/reducer/bucket_hooks.hpp"
#include "ddp/reducer/bucket_plan.hpp"
#include "ddp/reducer/parameter.hpp"
#include "ddp/reducer/step_statistics.hpp"

namespace ddp {
struct RecordedStep;  // of StepGraph
}

namespace DDP_EXPORT ddp {

/// How gradients are kept and reduced.
struct ReducerOptions {
  Bytes bucket_bytes = 25_MiB;                       ///< a bucket is closed when it has so much
  Bytes first_bucket_bytes = 1_MiB;                  ///< of the first bucket, which should start early
  GradientStorage storage = GradientStorage::arena;  ///< where gradients stand between steps
  /// What a step without set_weight() computes.
  enum class Reduction { average, sum } reduction = Reduction::average;  ///< which of them
  /// A floating point type that gradients of any other one are converted to while they travel: f32, so that
  /// 16-bit gradients are added up in f32, or bf16 or f16, so that f32 gradients take half the time on the
  /// wire. Results have the gradients' own type. Takes memory for one bucket of that type on each device.
  /// None: gradients travel as they are.
  std::optional<DType> reduce_dtype{};
  /// What happens to a parameter that this rank did not mark.
  enum class Unused {
    zero,   ///< counts as zero
    error,  ///< synchronize() throws on every rank, with parameters and ranks; costs one host wait a step
  } unused = Unused::zero;  ///< which of them
  /// What happens to gradients that are not finite: NaN or infinite on a rank, also where reduce_dtype made
  /// them so. Looking for them reads all gradients once. The parameters lie on one device.
  enum class Nonfinite {
    ignore,  ///< they spread to every rank
    error,   ///< synchronize() throws on every rank, with parameters and ranks; costs one host wait a step
    flag,    ///< found_nonfinite() is 1 on every rank, for an optimizer that skips the step
  } nonfinite = Nonfinite::ignore;  ///< which of them
  /// If above 0: after every so many synchronised steps ranks compare the values of all parameters, as they
  /// are then on the compute stream; where they differ, synchronize() throws on every rank, with parameters
  /// and ranks. Reads all parameters once, and the host waits.
  std::uint64_t verify_every = 0;
  /// For ranks that may run out of data at different steps, and then call join().
  enum class Uneven {
    refuse,          ///< there is no join(), and nothing is sent for it
    divide_by_live,  ///< averages are over ranks that have data: each counts 1, or what set_weight() says
    divide_by_all,   ///< averages are over all ranks, with zeros of those that have none; no set_weight()
    error,  ///< a step that only some ranks have data for throws on every rank; costs one host wait a step
  } uneven = Uneven::refuse;  ///< which of them
  /// If above 0: where the norm of all averages together is larger, they are multiplied by
  /// clip_norm / (norm + 1e-6), as torch::nn::utils::clip_grad_norm_ does it, without a host wait. The same
  /// on every rank. The parameters lie on one device.
  double clip_norm = 0;
  /// What DistributedDataParallel::sync_buffers() does; the same on every rank.
  BufferSync buffers = BufferSync::broadcast;
  /// Measures every step (StepStatistics) without waiting on the host: events on the streams, and 16 bytes
  /// of each rank with the step's last message. The same on every rank; DDP_STATISTICS sets it.
  bool statistics = false;
  /// Parameters may be marked several times in a step; the first step learns how often.
  bool allow_repeated_ready = false;
  /// Reorder buckets after the first synchronised step. If the order changes, arena storage moves the
  /// gradients through host memory once, at the end of that step.
  bool rebuild_buckets = true;
  /// Where buckets lie, if not in memory of the communicators: at least `bytes` on `device`, aligned to
  /// BucketPlan::kAlignment, and ready for the compute stream, on which they are zeroed. For a program whose
  /// allocator is to know all memory of a GPU. On every rank or on none.
  std::function<Tensor(Bytes bytes, Device device)> allocate{};
};

/// A gradient with an element that is not finite.
struct NonfiniteGradient {
  std::size_t parameter = 0;  ///< as given to the constructor
  Rank rank;                  ///< by place in the group, on which it was found
};

/// Where gradients of one device are reduced. Communicator and streams must outlive the Reducer.
struct ReducerLane {
  Device device;                         ///< of the parameters
  Communicator* communicator = nullptr;  ///< used by this Reducer alone, on `comm_stream` alone
  Stream* compute_stream = nullptr;      ///< where the program writes gradients
  Stream* comm_stream = nullptr;         ///< where collectives run
};

class NoSyncGuard;

/// Writes flags, of which each is 0 or 1.
using TellFlags = std::function<void(std::span<std::uint8_t> flags)>;

/// See DistributedDataParallel, which makes one of these after its checks. From construction to destruction
/// it owns the gradients of `parameters`. Functions may be called by several threads: a call waits until
/// those of other threads are through. What parameters() and plan() refer to may change in rebind_value() and
/// in synchronize().
class Reducer {
 public:
  /// Collective. `name` is equal on every rank, and used by only one living Reducer; it names control-plane
  /// keys. `lanes`: one for each device on which parameters lie.
  Reducer(std::string name, std::shared_ptr<ControlPlane> control, std::vector<Rank> group,
          std::vector<ReducerLane> lanes, std::vector<Parameter> parameters, ReducerOptions options,
          std::chrono::milliseconds timeout);
  ~Reducer();
  Reducer(Reducer const&) = delete;
  Reducer& operator=(Reducer const&) = delete;

  void gradient_ready(std::size_t index);  ///< This and what follows: as in DistributedDataParallel.
  void gradient_ready(std::size_t index, Tensor source);  ///< As there.
  void no_gradient(std::size_t index);                    ///< As there.
  /// The same, but in place of zeros this rank gives `kept`, a gradient of an earlier step, under the rules
  /// of gradient_ready(index, source): what the ranks have added up is averaged. The bound memory then has
  /// that average also if no rank used the parameter.
  void no_gradient(std::size_t index, Tensor kept);
  /// What the next synchronize() would send first is sent now, so that it only waits: for a program that ends
  /// the steps of several objects, in which ranks may have begun in another order.
  void send_rest();
  void synchronize();  ///< As there.
  /// As there. `others_began`: also where this rank has not begun the step, as before its first gradient.
  void abandon_step(std::string_view reason, bool others_began = false) noexcept;
  [[nodiscard]] bool in_step() const noexcept;  ///< As there.
  void compute_on(Stream& stream);              ///< As there.
  void set_weight(double weight);               ///< As there.
  /// Before the first gradient of a step: whether the program has changed a parameter, and cleared a
  /// gradient, since this rank's last one. Ranks that say so and differ get CommError(mismatch) from this
  /// step.
  void since_last_step(bool changed_parameters, bool cleared_gradients);
  void set_comm_hook(CommHook hook);                                                         ///< As there.
  void join(std::function<void()> const& update, std::function<void()> const& before_step);  ///< As there.
  void on_bucket_ready(BucketReady update);                                                  ///< As there.
  void begin_forward();                                                                      ///< As there.
  [[nodiscard]] NoSyncGuard no_sync(bool when = true);                                       ///< As there.
  void zero_gradients();                                                                     ///< As there.
  [[nodiscard]] bool has_gradient(std::size_t index);                                        ///< As there.
  [[nodiscard]] TensorView used_parameters() const;                                          ///< As there.
  [[nodiscard]] TensorView gradient_norm() const;                                            ///< As there.
  [[nodiscard]] TensorView found_nonfinite() const;                                          ///< As there.
  [[nodiscard]] std::vector<NonfiniteGradient> nonfinite_gradients();                        ///< As there.
  void rebind_value(std::size_t index, TensorView const& value);                             ///< As there.

  /// For StepGraph. Calls `step` and records into `into.graph` what it enqueues. Collective. Returns why some
  /// rank could not, and then none has a graph; empty if all have.
  [[nodiscard]] std::string record(RecordedStep& into, std::function<void()> const& step);
  /// Whether a step is recorded: nothing that is enqueued runs.
  [[nodiscard]] bool is_recording() const noexcept;
  /// For StepGraph: the recorded step again. Collective, if it sends.
  void replay(RecordedStep const& step);

  /// As given to the constructor and to rebind_value().
  [[nodiscard]] std::span<Parameter const> parameters() const noexcept;
  /// The gradient of parameter `index`, wherever it lives.
  [[nodiscard]] TensorView gradient(std::size_t index) const;
  /// The plan in use; a new one after the buckets were rebuilt.
  [[nodiscard]] BucketPlan const& plan() const noexcept;
  /// For messages of the model that belong to no step: `send` enqueues them on the lanes' communicators, each
  /// on its communication stream, and makes the compute streams wait. What it throws makes this object
  /// unusable, as an error of a step does. Does nothing under no_sync(). In the middle of a step it throws
  /// Error(invalid_state), which begins with `what`, the caller's name.
  void between_steps(std::string_view what, std::function<void(std::span<ReducerLane const>)> const& send);

  /// For libraries on top, before the first step, with the same `flags` on every rank: so many more bytes of
  /// 0 or 1 travel with each step's last message. `say` writes this rank's, all of them, in the thread that
  /// marks the step's last parameter or calls synchronize().
  void tell_with_tail(std::size_t flags, TellFlags say);
  /// After synchronize(): which of them some rank said; the same on every rank. In this step, if the tail
  /// travels between CPUs; on a GPU in the one before, for which the host waits when a step begins.
  [[nodiscard]] std::span<std::uint8_t const> told_with_tail();

  /// With ReducerOptions::statistics: `report` gets the steps that were measured, in order, each once: at the
  /// end of a later step, when all is known of them, and when this object is destroyed. It replaces the one
  /// of DistributedDataParallel, and must not call this object.
  void report_statistics(std::function<void(std::vector<StepStatistics> steps)> report);

  /// Synchronised steps done.
  [[nodiscard]] std::uint64_t steps() const noexcept;
  /// All-reduces of gradients in a step: one a bucket, or more with in_place if gradients of a bucket are not
  /// neighbours in memory.
  [[nodiscard]] std::size_t messages() const noexcept;
  /// How often the buckets were rebuilt: 0 or 1.
  [[nodiscard]] int rebuilds() const noexcept;

 private:
  friend class NoSyncGuard;
  class DDP_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

/// While it lives, its Reducer sends nothing. Must not outlive the Reducer.
// The functions that return one are [[nodiscard]], not the class: nvcc would warn of std::optional::emplace.
class NoSyncGuard {
 public:
  NoSyncGuard() noexcept = default;                      ///< Guards nothing.
  NoSyncGuard(NoSyncGuard&& other) noexcept;             ///< The moved-from guard guards nothing.
  NoSyncGuard& operator=(NoSyncGuard&& other) noexcept;  ///< Ends what it guarded, then as above.
  ~NoSyncGuard();

 private:
  friend class Reducer;
  explicit NoSyncGuard(Reducer::Impl& reducer);
  Reducer::Impl* reducer_ = nullptr;
};

}  // namespace ddp
