// A model's gradients, reduced over ranks in buckets while the backward pass still runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/reducer/no_sync_guard.hpp"
#include "reducer/buckets/bucket_reduction.hpp"
#include "reducer/buckets/bucket_updates.hpp"
#include "reducer/parts/step_parts.hpp"
#include "reducer/sharding/sharded_values.hpp"
#include "reducer/step_recorder.hpp"

namespace ddp {

/// What DistributedDataParallel and StepGraph do in a step; functions are described there, but for those that
/// have a comment here. From construction to destruction it owns the gradients of `parameters`. Functions may
/// be called by several threads: a call waits until those of other threads are through. What parameters() and
/// plan() refer to may change in rebind_value() and in synchronize().
class Reducer {
 public:
  /// Collective. `parameters`: as check_parameters() wants them. `lanes`: one for each device on which they
  /// lie. `compared`: what else ranks must have alike.
  Reducer(ReducerRanks ranks, std::vector<ReducerLane> lanes, std::vector<Parameter> parameters,
          DistributedDataParallelOptions const& options, std::string const& compared = {});
  ~Reducer();
  Reducer(Reducer const&) = delete;
  Reducer& operator=(Reducer const&) = delete;

  void gradient_ready(std::size_t index);
  void gradient_ready(std::size_t index, Tensor source);
  void no_gradient(std::size_t index, Tensor kept = {});
  void send_rest();
  void synchronize();
  void abandon_step(std::string_view reason, bool others_began = false) noexcept;
  [[nodiscard]] bool in_step() const;
  void compute_on(Stream& stream);
  void set_weight(double weight);
  void since_last_step(bool changed_parameters, bool cleared_gradients);
  void set_comm_hook(CommHook hook);
  void join(std::function<void()> const& update, std::function<void()> const& before_step);
  void on_bucket_ready(BucketReady update);
  [[nodiscard]] std::span<Slice const> slices() const;
  void on_slice_ready(SliceReady update);
  void update_slices(SliceReady const& update);
  void begin_forward();
  [[nodiscard]] NoSyncGuard no_sync(bool when = true);
  void leave_no_sync();
  void zero_gradients();
  [[nodiscard]] bool has_gradient(std::size_t index);
  [[nodiscard]] TensorView used_parameters() const;
  // These two take no lock: on a CPU the function of on_bucket_ready() calls them in a thread for which
  // synchronize() waits. What they read never changes.
  [[nodiscard]] TensorView gradient_norm() const { return GradientChecks::norm(parts_.checks.get()); }
  [[nodiscard]] TensorView found_nonfinite() const {
    return GradientChecks::found_nonfinite(parts_.checks.get());
  }
  [[nodiscard]] TensorView uncommitted() const {
    return parts_.commit ? state_.lanes[0].skip.view() : TensorView{};
  }
  [[nodiscard]] std::vector<NonfiniteGradient> nonfinite_gradients();
  void rebind_value(std::size_t index, TensorView const& value);
  /// `make`, collective, makes a lane between the CPUs of all ranks. It is called one step after some rank
  /// has first left a parameter out. From then on has_gradient() waits for the other ranks' CPUs, not for
  /// GPUs (R27). Where CPUs do not see each other's calls it never is.
  void set_cpu_lane(std::function<ReducerLane()> make) { make_cpu_lane_ = std::move(make); }
  void tell_with_tail(std::size_t flags, UsedParameters::TellFlags say);
  [[nodiscard]] std::span<std::uint8_t const> told_with_tail();

  /// For StepGraph. Calls `step` and records into `into.graph` what it enqueues. Collective. Returns why some
  /// rank could not, and then none has a graph; empty if all have.
  [[nodiscard]] std::string record(RecordedStep& into, std::function<void()> const& step);
  /// Whether a step is recorded: nothing that is enqueued runs.
  [[nodiscard]] bool is_recording() const;
  /// For StepGraph: the recorded step again. Collective, if it sends.
  void replay(RecordedStep const& step);

  /// For messages of the model that belong to no step: `send` enqueues them on the lanes' communicators, each
  /// on its communication stream, and makes the compute streams wait. What it throws makes this object
  /// unusable, as an error of a step does. Does nothing under no_sync(). In the middle of a step it throws
  /// Error(invalid_state), which begins with `what`, the caller's name.
  void between_steps(std::string_view what, std::function<void(std::span<ReducerLane const>)> const& send);
  /// With Options::statistics: `report` gets the steps that were measured, in order, each once: at the
  /// end of a later step, when all is known of them, and when this object is destroyed. It must not call this
  /// object.
  void report_statistics(std::function<void(std::vector<StepStatistics> steps)> report);

  [[nodiscard]] std::span<Parameter const> parameters() const noexcept { return state_.parameters; }
  /// The gradient of parameter `index`, wherever it lives.
  [[nodiscard]] TensorView gradient(std::size_t index) const;
  /// Why another Reducer, of fewer ranks, cannot go on in this one's place between steps, or after a failed
  /// one; empty if it can. `goes_back`: to a checkpoint, which has what is nowhere else.
  [[nodiscard]] std::string why_not_rebuilt(bool goes_back) const;
  /// Whether this rank has all of what a training goes on from, of a whole number of steps.
  [[nodiscard]] bool is_whole() const { return !values_ && updates_.begun() <= committed_steps(); }

  /// The plan in use; a new one after the buckets were rebuilt.
  [[nodiscard]] BucketPlan const& plan() const noexcept { return state_.buckets.plan(); }
  [[nodiscard]] std::uint64_t steps() const;
  /// How many of them are committed: on a GPU the host may be one ahead. Exact when the streams have ended.
  [[nodiscard]] std::uint64_t committed_steps() const;
  /// Whether the program may not have updated the parameters since the last step: none has begun since.
  [[nodiscard]] bool awaits_update() const;
  /// The host waits until all steps of the World that are enqueued are committed; throws CommError.
  void await_commits() const;
  /// All-reduces of gradients in a step.
  [[nodiscard]] std::size_t messages() const;
  /// How often the buckets were rebuilt: 0 or 1.
  [[nodiscard]] int rebuilds() const;

 private:
  // One call of the program; calls of other threads wait until it ends.
  using Turn = std::lock_guard<std::recursive_mutex>;

  // The parts of a step, in this order.
  void begin_step();
  void mark(std::size_t index, Tensor source);
  void send_complete_buckets();
  void send(std::size_t first, std::size_t end);
  void send_tail();
  void send_all();
  void finish_step();
  void prepare_further_steps(std::span<std::size_t const> arrival, std::span<std::size_t const> left_out);
  void tell_over_cpus(bool leaves_out);
  [[nodiscard]] bool begin_step_of_others();

  void require_updates_can_be_early(std::string_view what) const;
  void require_sharded(std::string_view what) const;
  void slices_updated(ReducedBucket const& bucket);
  void warn_of_no_updates();
  /// Gives every rank the new values of a lane, behind `updates`; nothing if there are none.
  void gather(std::size_t lane, Stream& updates);

  void use_plan(std::unique_ptr<BucketPlan const> plan, std::string const& compared = {});
  void choose_queues();
  void meet();

  [[nodiscard]] std::string why_not_recorded() const;
  [[nodiscard]] std::string begin_recording(RecordedStep& into);
  void check_recorded() const;
  [[nodiscard]] std::string end_recording(std::string const& failed);
  void replay_and_send(RecordedStep const& step);
  void replay_alone(RecordedStep const& step);
  void check_replay(RecordedStep const& step) const;

  void check_index(std::size_t index) const;
  void refuse_capture() const;
  void require_usable() const;
  void require_between_steps(std::string_view what) const;
  void require_not_in_step(std::string_view what, std::string_view instead) const;
  // Makes this object unusable and tells ddp-launch and the other ranks why.
  void fail(std::exception const& error) noexcept;
  // Runs a part of a step: if it throws, the step has failed.
  template <class Body>
  void or_fail(Body const& body) {
    try {
      body();
    } catch (std::exception const& error) {
      if (!state_.step.is_recorded()) fail(error);
      throw;
    }
  }
  // Ends the step for all ranks. The reason is an earlier failure of the group, or else `reason()`.
  void give_up(std::function<std::string()> const& reason) noexcept;
  void drain(Stream& stream) const noexcept;

  // Recursive: bind_gradient and owners of sources are the program's code, which may call this object.
  mutable std::recursive_mutex mutex_;
  ReducerState state_;
  StepParts parts_;
  std::unique_ptr<BucketReduction> reduction_;
  BucketUpdates updates_;
  std::function<ReducerLane()> make_cpu_lane_;
  std::optional<ReducerLane> cpu_lane_;
  std::optional<ShardedValues> values_;  // with Options::sharding
  std::uint64_t slices_updated_ = 0;     // the step, from 1, behind which update_slices() was called last
  bool may_forget_updates_ = true;       // nothing was updated yet, and there was no warning
  StepRecorder recorder_;
  int no_sync_depth_ = 0;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace ddp
