// Watches the operations of an NCCL communicator, and ends them when they can never be done.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/nccl/calls/call_gate.hpp"
#include "comm/nccl/calls/call_matcher.hpp"
#include "comm/nccl/connect.hpp"
#include "comm/nccl/watch/gpu_progress.hpp"
#include "comm/nccl/watch/teardown.hpp"
#include "core/pausing_deadline.hpp"
#include "core/service_thread.hpp"
#include "device/cuda/stream/stream_state.hpp"

namespace ddp {

/// Checks every 10 ms while operations are under way, in a thread that all communicators of the process
/// share: for lost ranks, operations that differ, NCCL's own errors, failures of other ranks, and the
/// deadline. At the first failure it aborts NCCL's communicator (NcclTeardown), so that kernels leave the GPU
/// and calls return; streams throw the failure from their waits.
///
/// The timeout limits how long operations may be under way without progress. It starts anew whenever a check
/// finds that the GPU has done more of them, or that every rank whose calls are seen has called more. Time in
/// which the next operation is queued behind other work of its stream does not count. But that is measured
/// for one operation at a time: when a check finds it done, for the next one that is called.
///
/// The watchdog decides by what it reads from memory, and an abort begins with one store that the GPU reads.
/// Neither calls CUDA, which may not answer before the abort. Until CUDA answers, no further operation counts
/// as done.
class NcclWatchdog final : public StreamWatch,
                           public std::enable_shared_from_this<NcclWatchdog>,
                           private ServiceThread::Client {
 public:
  explicit NcclWatchdog(NcclConnection connection);
  ~NcclWatchdog() override;
  /// Begins to watch, and so perhaps to abort. From now on the communicator is used within a Call only.
  void start();

  /// One call, or one group of calls, of NCCL: on this thread alone, and no abort frees the communicator
  /// while it lasts.
  class [[nodiscard]] Call {
   public:
    /// Throws the failure, if there is one.
    Call(NcclWatchdog& watchdog, CudaStream& stream);
    ~Call();
    Call(Call const&) = delete;
    Call& operator=(Call const&) = delete;
    /// Says that `operation` is called. Before the first call of NCCL.
    void publish(Fingerprint const& operation) { watchdog_.calls_->publish(operation); }
    /// Right before the first call of NCCL. Throws the failure, if there is one.
    void begin() { watchdog_.begin(stream_, first_); }

   private:
    NcclWatchdog& watchdog_;
    CudaStream& stream_;
    OnItsDevice on_;
    std::uint64_t first_;
  };

  /// Whether NCCL has connected the ranks, which the first Call does. For the thread that calls operations.
  [[nodiscard]] bool is_open() const noexcept { return handles_->is_open(); }
  /// Valid within a Call that has begun.
  [[nodiscard]] ncclComm_t communicator() const noexcept { return handles_->work(); }
  [[nodiscard]] NcclGroup const& group() const noexcept { return group_; }
  /// Whether all ranks see at once what the others call.
  [[nodiscard]] bool is_on_one_host() const noexcept { return calls_->is_on_one_host(); }
  /// A number that is equal on ranks that have called the same collectives. For the thread that calls them.
  [[nodiscard]] std::uint64_t called() const noexcept { return calls_->called(); }
  /// Within a Call: `graph` holds operations, and is destroyed before the communicator is freed.
  void keep(std::shared_ptr<RecordedGraph> const& graph) { handles_->keep(graph); }

  /// Outside of a Call: a call has ended with this error. Throws the failure that is behind it.
  [[noreturn]] void fail_call(ncclResult_t result, std::string_view doing) const;
  /// Makes every operation of every rank fail. The first failure stays. Any thread.
  void fail(Failure failure) const noexcept;

  void check() const override;
  /// Collectives whose call has returned.
  [[nodiscard]] std::uint64_t enqueued() const noexcept override { return gate_.returned_collectives(); }
  /// Returns when all ranks of this host have called the same collectives up to this one: a root may be done
  /// before another rank has begun, perhaps with something else. Calls of other hosts are compared later, and
  /// fail the group if they differ: waiting for them would cost every step some milliseconds. Returns at once
  /// if the communicator is freed.
  void settle(std::uint64_t through) const override;
  /// Returns when every rank has begun the same step as this rank's latest, and what all ranks say with it,
  /// combined; at once, and nothing, where ranks are on several hosts. For the thread that calls operations.
  SinceLastStep settle_step() const;
  /// Ranks are known to have called different operations: asks other hosts what they called. check() soon
  /// throws the difference. Any thread.
  void look_for_difference() const;
  [[nodiscard]] bool has_ended() const noexcept override { return closed_; }
  [[nodiscard]] bool is_over() const noexcept override {
    return closed_ && (teardown_.is_retired() || is_known());
  }
  /// Returns when the GPU has done all operations called so far. `what`: the call that needs it. Throws
  /// Error(invalid_state) while operations are captured; otherwise as wait_for_operations(). For the thread
  /// that calls the communicator.
  void finish_operations(char const* what) const;

  /// Ends the checks and frees the communicator: in order, or by an abort after a failure or if operations do
  /// not end. Called once, last; streams may keep this object longer.
  void close() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kNap = std::chrono::microseconds(100);
  // Ranks of a host that have to ask other hosts within this time ask once.
  static constexpr auto kTogether = std::chrono::milliseconds(100);
  friend class Call;

  void begin(CudaStream& stream, std::uint64_t first);
  /// Has NCCL connect the ranks, in the first operation, the `first` that is published. Throws the failure.
  void open(std::uint64_t first);
  [[nodiscard]] bool have_called(std::uint64_t operation) const;

  /// Whether a stream has operations that the GPU has not done.
  [[nodiscard]] bool is_busy() const;
  void look_soon() const noexcept;

  // Called in the watchdog's thread.
  std::optional<std::chrono::milliseconds> serve() noexcept override;
  void look();
  void fall_asleep();
  [[nodiscard]] bool nothing_is_left() const;
  /// Compares what is known of ranks' calls, and fails if they differ. How many collectives this host's ranks
  /// agree on.
  std::uint64_t compare() const;
  /// The same for this host's ranks alone.
  std::uint64_t compare_here() const;
  /// The operation in which this rank waits, and the members that it waits for.
  struct Wait {
    Fingerprint operation;
    std::vector<std::size_t> missing;
  };
  /// The first operation under way in which a rank is known to be missing; otherwise the first one.
  [[nodiscard]] std::optional<Wait> wait(std::uint64_t agreed) const;
  [[nodiscard]] Wait wait_in(Fingerprint const& operation) const;
  [[nodiscard]] std::string activity(Wait const& wait) const;
  [[nodiscard]] std::optional<Failure> dead_member() const;
  /// How close() is to free the communicator, of which no operation runs. Waits `rest` for the ranks of this
  /// host where NCCL does, which would wait for good.
  [[nodiscard]] NcclTeardown::Manner manner_of_end(PausingDeadline& rest) const;
  /// Asks the other hosts; true when they have told, or had their time.
  bool find_out();
  /// Of all ranks that have neither died nor left.
  [[nodiscard]] bool all_that_stay_are_known() const;
  void look_for_lost_ranks(Wait const& wait);
  void look_at_nccl();
  void look_at_deadline(Wait const& wait);
  /// Adds "; nothing was heard of node7 for 1 s…" for each host that has not answered.
  void note_silence(Failure& failure) const;

  NcclGroup group_;
  std::shared_ptr<NcclHandles> handles_;
  std::shared_ptr<PublishedCalls> calls_;
  std::shared_ptr<RemoteCalls> remote_;
  GpuProgress progress_;
  mutable std::mutex ledger_mutex_;
  mutable CallMatcher matcher_;

  NcclCallGate gate_;
  NcclTeardown teardown_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> opening_{false};   // while NCCL connects the ranks
  std::atomic<bool> all_came_{false};  // of all hosts, to the first operation

  // Used by the watchdog's thread, and after it by close().
  std::optional<PausingDeadline> timeout_;  ///< since the operation that is waited for could begin
  Clock::time_point busy_until_;
  std::uint64_t done_ = 0;
  std::uint64_t agreed_ = 0;
  std::optional<Clock::time_point> asks_since_;  ///< when it began to need other hosts' calls
  std::size_t losses_ = 0;                       ///< lost ranks of which it knew then
  std::optional<Clock::time_point> nccl_failed_;
  std::atomic<bool> closed_ = false;
};

}  // namespace ddp
