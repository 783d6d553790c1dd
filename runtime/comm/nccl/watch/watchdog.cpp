#include "comm/nccl/watch/watchdog.hpp"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "comm/last_operation.hpp"
#include "comm/nccl/check.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// How long close() waits for operations that are still on a stream.
constexpr std::chrono::milliseconds kLongestRest = std::chrono::seconds(10);
// How long a rank spins for others to begin a step before it sleeps between polls. Ranks that keep pace need
// no sleep, which would take longer.
constexpr auto kStepSpin = std::chrono::microseconds(20);

// For all communicators; never destroyed, since a communicator may live until the process ends.
ServiceThread& watchdogs() {
  static auto* const thread = new ServiceThread;
  return *thread;
}

}  // namespace

NcclWatchdog::NcclWatchdog(NcclConnection connection)
    : group_(std::move(connection.group)),
      handles_(std::move(connection.handles)),
      calls_(std::move(connection.calls)),
      remote_(std::move(connection.remote)),
      progress_(group_.device),
      matcher_(calls_, group_.world_ranks),
      gate_(calls_),
      teardown_(group_, handles_, gate_) {}

void NcclWatchdog::start() {
  watchdogs().add(*this);
  remote_->listen([this] { look_soon(); });
}

NcclWatchdog::~NcclWatchdog() {
  if (!closed_) close();
}

NcclWatchdog::Call::Call(NcclWatchdog& watchdog, CudaStream& stream)
    : watchdog_(watchdog), stream_(stream), on_(stream) {
  watchdog.tell();
  if (!watchdog.progress_.is_on(stream)) watchdog.progress_.follow(stream, watchdog.shared_from_this());
  first_ = watchdog.calls_->published() + 1;
}

NcclWatchdog::Call::~Call() {
  watchdog_.gate_.calls_returned();
  watchdog_.progress_.behind(watchdog_.gate_.returned(), stream_);
}

void NcclWatchdog::begin(CudaStream& stream, std::uint64_t first) {
  if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]] {
    asleep_ = false;
    look_soon();
  }
  if (gate_.is_shut()) [[unlikely]] {
    tell();
  }
  if (!handles_->is_open()) [[unlikely]] {
    open(first);
  }
  progress_.before(first, stream);
}

// Lost ranks, operations that differ, and ranks that do not come are seen as in every operation.
void NcclWatchdog::open(std::uint64_t first) {
  opening_ = true;
  try {
    open_nccl(group_, *handles_, calls_->is_on_one_host(), [&] {
      check();
      return all_came_ || (calls_->is_on_one_host() && have_called(first));
    });
    opening_ = false;
  } catch (std::exception const& error) {
    opening_ = false;
    fail(failure_of(error));
    tell();
  }
  // An abort that began before is_open() waits for this call, and ends none of NCCL's.
  if (gate_.is_shut()) tell();
}

// Whether no rank of this host is missing.
bool NcclWatchdog::have_called(std::uint64_t operation) const {
  auto const said = calls_->record(operation);
  return !said || wait_in(*said).missing.empty();
}

void NcclWatchdog::fail_call(ncclResult_t result, std::string_view doing) const {
  Deadline const news = Deadline::after(nccl::kLostRankGrace);
  auto const begin = Clock::now();
  while (!news.expired()) {
    if (remote_->find_out(begin - kTogether)) compare();
    tell();
    if (auto dead = dead_member()) {
      fail(loss_of(std::move(*dead), group_.me(), std::string(doing)));
      continue;
    }
    std::this_thread::sleep_for(kNap);
  }
  CommError const error(nccl::code_of(result), nccl::describe(result, doing));
  fail(error.failure());
  tell();
  throw CommError(error);
}

void NcclWatchdog::fail(Failure failure) const noexcept {
  failure.ended_by = group_.me();
  if (calls_->failure().set(failure)) remote_->tell_failure(failure);
  look_soon();
}

void NcclWatchdog::look_soon() const noexcept { watchdogs().wake(*this); }

void NcclWatchdog::check() const {
  if (!teardown_.is_retired()) calls_->failure().throw_if_set(group_.me());
}

std::uint64_t NcclWatchdog::compare() const {
  std::lock_guard const lock(ledger_mutex_);
  if (auto const difference = matcher_.compare()) fail(*difference);
  return matcher_.agreed();
}

void NcclWatchdog::look_for_difference() const {
  static_cast<void>(remote_->find_out(Clock::now() - kTogether));
}

std::uint64_t NcclWatchdog::compare_here() const {
  std::lock_guard const lock(ledger_mutex_);
  if (auto const difference = matcher_.compare_here()) fail(*difference);
  return matcher_.agreed();
}

void NcclWatchdog::settle(std::uint64_t through) const {
  check();
  while (!teardown_.is_retired() && !teardown_.is_aborted() && compare_here() < through) {
    check();
    std::this_thread::sleep_for(kNap);
  }
  check();
}

SinceLastStep NcclWatchdog::settle_step() const {
  tell();
  if (!calls_->is_on_one_host()) return {};
  bool all_began = calls_->all_began_this_step();
  for (auto const begin = Clock::now(); !all_began && Clock::now() - begin < kStepSpin;) {
    all_began = calls_->all_began_this_step();
  }
  if (!all_began) tell([this] { settle(calls_->step_began()); });
  auto const mark_of = [this](std::size_t r) { return calls_->mark_of_this_step(r).value_or(StepMark{}); };
  if (auto const difference = find_different_loops(mark_of, group_.world_ranks)) {
    fail(*difference);
    tell();
  }
  SinceLastStep all;
  for (std::size_t r = 0; r < group_.world_ranks.size(); ++r) all.bits |= mark_of(r).since().bits;
  return all;
}

bool NcclWatchdog::is_busy() const {
  return progress_.operations_done() < calls_->published() && !progress_.stream_is_idle();
}

// Asks is_busy() first: an idle stream tells at once that all is done, which otherwise takes a check or two.
void NcclWatchdog::finish_operations(char const* what) const {
  tell();
  if (!is_busy()) return;
  wait_for_operations(
      what, group_.waiting.timeout, [this] { return progress_.operations_done() == calls_->published(); },
      [&] {
        tell();
        if (progress_.stream_is_capturing()) {
          throw Error(ErrorCode::invalid_state,
                      text(what,
                           ": operations of this communicator are being captured into a CUDA graph; "
                           "end the capture first"));
        }
        look_soon();
      },
      [this](Failure const& failure) {
        fail(failure);
        program_knows();
      });
}

std::optional<Failure> NcclWatchdog::dead_member() const {
  return find_lost(group_, [](std::size_t) { return false; });
}

// NCCL would wait for the ranks of the host without a limit, even for those that abort: see
// docs/internals/nccl.md.
NcclTeardown::Manner NcclWatchdog::manner_of_end(PausingDeadline& rest) const {
  using End = PublishedCalls::End;
  auto const has_failed = [this] { return calls_->failure().is_set() || dead_member().has_value(); };
  if (has_failed()) return NcclTeardown::Manner::failed;
  if (!handles_->is_open()) return NcclTeardown::Manner::in_order;
  calls_->come_to_end();
  End end = calls_->end();
  while (end == End::awaits) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    end = rest.ended() || has_failed() ? calls_->give_up_end() : calls_->end();
  }
  if (has_failed()) return NcclTeardown::Manner::failed;
  return end == End::together ? NcclTeardown::Manner::in_order : NcclTeardown::Manner::alone;
}

void NcclWatchdog::close() noexcept {
  GroupFailure const& failure = calls_->failure();
  auto manner = NcclTeardown::Manner::failed;
  try {
    PausingDeadline rest(std::min(group_.waiting.timeout, kLongestRest));
    while (!failure.is_set() && is_busy()) {
      if (rest.ended()) {
        fail({.code = ErrorCode::aborted,
              .manner = Failure::Manner::left,
              .ranks = {group_.me()},
              .by = group_.me(),
              .detail =
                  text("rank ", group_.me(), " ended its communicator while operations were on a stream")});
      }
      std::this_thread::sleep_for(kNap);
    }
    manner = manner_of_end(rest);
  } catch (Error const& error) {
    fail(failure_of(error));
  }
  remote_->stop_listening();
  watchdogs().remove(*this);
  teardown_.finish(failure.is_set() || dead_member() ? NcclTeardown::Manner::failed : manner);
  progress_.stop();
  closed_ = true;
}

}  // namespace ddp
