// The implementation of Reducer.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/own_process.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/reducer/reducer.hpp"
#include "reducer/checks/gradient_checks.hpp"
#include "reducer/checks/weight_check.hpp"
#include "reducer/memory/gradient_memory.hpp"
#include "reducer/memory/gradient_sources.hpp"
#include "reducer/memory/value_claim.hpp"
#include "reducer/ready_tracker.hpp"
#include "reducer/recorded_step.hpp"
#include "reducer/statistics/statistics.hpp"
#include "reducer/step_head.hpp"
#include "reducer/used_parameters.hpp"

namespace ddp {

class Reducer::Impl {
 public:
  Impl(std::string name, std::shared_ptr<ControlPlane> control, std::vector<Rank> group,
       std::vector<ReducerLane> lanes, std::vector<Parameter> parameters, ReducerOptions options,
       std::chrono::milliseconds timeout);
  ~Impl();
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  OwnProcess maker;

  // One call of the program; those of other threads wait for its end.
  class Turn {
   public:
    explicit Turn(Impl& impl) : lock_(impl.mutex_), impl_(impl) {}
    Impl* operator->() const noexcept { return &impl_; }

   private:
    std::lock_guard<std::recursive_mutex> lock_;
    Impl& impl_;
  };
  [[nodiscard]] Turn turn() { return Turn(*this); }

  void gradient_ready(std::size_t index);
  void gradient_ready(std::size_t index, Tensor source);
  void no_gradient(std::size_t index, Tensor kept);
  void compute_on(Stream& stream);
  void abandon_step(std::string_view reason, bool others_began) noexcept;
  void rebind_value(std::size_t index, TensorView const& value);
  void send_rest();
  void synchronize();
  void set_weight(double weight);
  void since_last_step(bool changed_parameters, bool cleared_gradients);
  void set_comm_hook(CommHook hook);
  void join_others(std::function<void()> const& update, std::function<void()> const& before_step);
  void on_bucket_ready(BucketReady update);
  void enter_no_sync();
  void leave_no_sync() noexcept { --no_sync_depth_; }
  void zero_gradients();
  void between_steps(std::string_view what, std::function<void(std::span<ReducerLane const>)> const& send);
  void tell_with_tail(std::size_t flags, TellFlags say);
  [[nodiscard]] std::span<std::uint8_t const> told_with_tail();
  [[nodiscard]] bool has_gradient(std::size_t index);
  [[nodiscard]] TensorView gradient_norm() const;
  [[nodiscard]] TensorView found_nonfinite() const;
  [[nodiscard]] std::vector<NonfiniteGradient> nonfinite_gradients();
  [[nodiscard]] TensorView used_parameters() const { return used_[answering_lane_].words(); }
  [[nodiscard]] bool in_step() const noexcept { return in_step_ && failure_.empty(); }
  [[nodiscard]] bool is_recording() const noexcept { return recording_ != nullptr; }
  void begin_forward();
  [[nodiscard]] std::string begin_recording(RecordedStep& into);
  void check_recorded() const;
  [[nodiscard]] std::string end_recording(std::string const& failed);
  [[nodiscard]] Stream& compute_stream() const noexcept { return *lanes_[0].compute_stream; }
  void replay(RecordedStep const& step);
  void report_statistics(std::function<void(std::vector<StepStatistics>)> report) {
    report_ = std::move(report);
  }

  [[nodiscard]] std::span<Parameter const> parameters() const noexcept { return parameters_; }
  [[nodiscard]] TensorView gradient(std::size_t index) const;
  [[nodiscard]] BucketPlan const& plan() const noexcept { return *plan_; }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  [[nodiscard]] std::size_t messages() const noexcept;
  [[nodiscard]] int rebuilds() const noexcept { return rebuilds_; }

 private:
  void check_index(std::size_t index) const;
  [[nodiscard]] std::string name_of(std::size_t index) const;
  // Makes plan, memory and tracker for an order of readiness that is equal on every rank.
  void build(std::span<std::size_t const> order);
  [[nodiscard]] bool agree_on_merging(BucketPlan const& plan);
  void agree_on_plan(BucketPlan const& plan);
  [[nodiscard]] std::vector<std::size_t> arrival_order_of_rank_0();
  bool learn_marks();

  void check_source(std::size_t index, TensorView const& source) const;
  void mark(std::size_t index, Tensor source);
  [[noreturn]] void throw_duplicate(std::size_t index, char const* call) const;
  void require_sum(std::size_t index) const;
  void refuse_capture() const;
  [[nodiscard]] std::string why_not_recorded() const;
  void end_recorded_step();
  void replay_and_send(RecordedStep const& step);
  void check_replay(RecordedStep const& step) const;
  void replay_alone(RecordedStep const& step);
  void wait_for_older_replay();
  void reset_step() noexcept;
  void require_between_steps(std::string_view what) const;
  void begin_step();
  void launch_rest();
  void launch_complete_buckets();
  [[nodiscard]] std::size_t end_of_run(std::size_t first) const;
  void launch(std::size_t first, std::size_t end);
  void reduce(std::size_t bucket, ReduceOp op);
  [[nodiscard]] bool sends_source(std::size_t bucket) const;
  void keep_sources(std::size_t bucket);
  void launch_tail();
  void hear_flags();
  void run_hook(std::size_t bucket, ReduceOp op);
  void update(std::size_t bucket);
  template <class Call>
  void call_program(std::size_t bucket, std::string_view what, Call const& call) const;
  // Whether a bucket is sent in another type than its gradients have.
  [[nodiscard]] bool converts(std::size_t bucket) const noexcept {
    return memory_.messages(bucket)[0].dtype != plan_->buckets()[bucket].dtype;
  }
  void fill(std::size_t bucket);
  void copy_back(std::size_t bucket);
  void make_checks();
  // The averages of a bucket, in runs.
  [[nodiscard]] std::span<GradientRun const> averages(std::size_t bucket);
  [[nodiscard]] bool clips() const noexcept { return options_.clip_norm > 0; }
  void finish_checks();
  void throw_nonfinite();
  [[nodiscard]] bool begin_shadow_step();
  void leave_out_micro_steps();
  void throw_uneven();
  void verify_weights();
  void end_measured_step();
  void report_measured();
  void report_rest() noexcept;
  void finish_step();
  void meet();
  void choose_queues();
  void throw_unused();
  void let_others_read() noexcept;
  void check_marks() const;
  void require_usable() const {
    if (!failure_.empty()) throw_unusable();
  }
  [[noreturn]] void throw_unusable() const;
  // Makes this object unusable and tells ddp-launch and the other ranks why.
  void fail(std::exception const& error) noexcept;
  // Runs a part of a step: if it throws, the step has failed.
  template <class Body>
  void or_fail(Body const& body) {
    try {
      body();
    } catch (std::exception const& error) {
      if (recording_ == nullptr) fail(error);
      throw;
    }
  }
  // Ends the step for all ranks: because of what made the group fail before, or of `reason()`.
  template <class Reason>
  void give_up(Reason const& reason) noexcept;
  void drain(Stream& stream) noexcept;
  [[nodiscard]] std::vector<std::string> exchange(std::string_view what, std::string_view value);

  // Recursive: bind_gradient and owners of sources are the program's code, which may ask this object.
  std::recursive_mutex mutex_;
  std::string name_;
  std::shared_ptr<ControlPlane> control_;
  std::vector<Rank> group_;
  std::vector<ReducerLane> lanes_;
  std::vector<Parameter> parameters_;
  ReducerOptions options_;
  std::chrono::milliseconds timeout_;

  std::vector<GradientSpec> specs_;
  std::vector<std::uint32_t> expected_marks_;
  std::unique_ptr<BucketPlan const> plan_;
  GradientMemory memory_;
  ReadyTracker tracker_;
  GradientSources sources_;  // with arena
  std::optional<ValueClaim> claim_;
  std::vector<std::uint8_t> summed_elsewhere_;  // by parameter: marked with a source under no_sync
  std::vector<Copy> copies_;                    // of one bucket
  std::vector<std::size_t> copied_;             // their parameters
  std::unique_ptr<GradientChecks> checks_;      // where options ask for any
  std::vector<GradientRun> runs_;               // of one bucket
  std::optional<UsedParameters> has_data_;      // a byte a rank, with options_.uneven
  std::vector<WeightCheck> weight_checks_;      // one a lane, with options_.verify_every
  std::vector<std::uint8_t> all_used_;          // what a rank without data says with Unused::error
  std::unique_ptr<Statistics> statistics_;      // with options_.statistics
  std::function<void(std::vector<StepStatistics>)> report_;  // of what they found
  CommHook hook_;
  BucketReady update_;
  std::vector<std::unique_ptr<Stream>> update_streams_;  // one a lane, once there is an update_
  std::vector<std::unique_ptr<StepHead>> heads_;         // one a lane
  std::vector<UsedParameters> used_;                     // one a lane
  TellFlags say_;                                        // what the tail carries beside them
  std::vector<std::uint8_t> told_;                       // of that, by any rank
  std::vector<std::size_t> bucket_lanes_;                // lane of each bucket
  bool has_empty_parameters_ = false;                    // which are in no bucket

  RecordedStep* recording_ = nullptr;           // into a graph
  int recorded_steps_ = 0;                      // in this recording
  std::optional<ReadyTracker> tracker_before_;  // the recording
  std::vector<std::uint8_t> summed_before_;     // likewise
  std::vector<Event> replayed_;                 // behind the last replays
  std::uint64_t replays_ = 0;
  bool in_step_ = false;
  bool tail_launched_ = false;
  std::size_t launched_ = 0;
  std::size_t tail_lane_ = 0;
  std::size_t answering_lane_ = 0;  // of the last tail: new buckets may end on another lane
  double weight_ = -1;              // none given
  SinceLastStep since_;             // of the step that begins next
  bool joined_ = false;             // this rank has no data
  int no_sync_depth_ = 0;
  std::uint64_t steps_ = 0;
  int rebuilds_ = 0;
  std::string failure_;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace ddp
