#include "comm/nccl/watchdog.hpp"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "bootstrap/describe_hosts.hpp"
#include "comm/last_operation.hpp"
#include "comm/nccl/check.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(10);
// How long it goes on checking when nothing is under way: waking it would cost a caller more than the checks.
constexpr auto kAwake = std::chrono::seconds(1);
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
      news_(std::move(connection.news)),
      progress_(group_.device),
      matcher_(calls_, group_.world_ranks),
      gate_(calls_),
      teardown_(group_, handles_, gate_) {}

void NcclWatchdog::start() { watchdogs().add(*this); }

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
  progress_.before(first, stream);
}

void NcclWatchdog::fail_call(ncclResult_t result, std::string_view doing) const {
  Deadline const news = Deadline::after(nccl::kLostRankGrace);
  while (!news.expired()) {
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
  if (calls_->failure().set(failure)) news_->tell_failure(failure);
  look_soon();
}

void NcclWatchdog::look_soon() const noexcept { watchdogs().wake(*this); }

void NcclWatchdog::check() const {
  if (!teardown_.is_retired()) calls_->failure().throw_if_set(group_.me());
}

CallMatcher::Agreed NcclWatchdog::compare() const {
  std::lock_guard const lock(ledger_mutex_);
  if (auto const difference = matcher_.compare()) fail(*difference);
  return matcher_.agreed();
}

std::uint64_t NcclWatchdog::compare_here() const {
  std::lock_guard const lock(ledger_mutex_);
  if (auto const difference = matcher_.compare_here()) fail(*difference);
  return matcher_.agreed().here;
}

void NcclWatchdog::settle(std::uint64_t through) const {
  check();
  while (!teardown_.is_retired() && !teardown_.is_aborted() && compare_here() < through) {
    check();
    std::this_thread::sleep_for(kNap);
  }
  check();
}

bool NcclWatchdog::settle_step() const {
  tell();
  if (!calls_->is_on_one_host()) return false;
  bool all_began = calls_->all_began_this_step();
  for (auto const begin = Clock::now(); !all_began && Clock::now() - begin < kStepSpin;) {
    all_began = calls_->all_began_this_step();
  }
  if (!all_began) tell([this] { settle(calls_->step_began()); });
  auto const difference = find_different_loops(
      [this](std::size_t r) { return calls_->mark_of_this_step(r).value_or(StepMark{}); },
      group_.world_ranks);
  if (difference) {
    fail(*difference);
    tell();
  }
  return true;
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

void NcclWatchdog::close() noexcept {
  GroupFailure const& failure = calls_->failure();
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
  } catch (Error const& error) {
    fail(failure_of(error));
  }
  watchdogs().remove(*this);
  news_->say_the_rest();
  teardown_.finish(!failure.is_set() && !dead_member());
  progress_.stop();
  closed_ = true;
}

// ---- in the thread that looks

std::optional<std::chrono::milliseconds> NcclWatchdog::serve() noexcept {
  GroupFailure const& failure = calls_->failure();
  if (teardown_.has_begun() || (asleep_ && !failure.is_set())) return std::nullopt;
  try {
    news_->exchange();
    if (!failure.is_set()) look();
    if (failure.is_set()) {
      teardown_.begin_to_abort();
      return std::nullopt;
    }
  } catch (Error const& error) {
    fail(failure_of(error));
  } catch (std::exception const& error) {
    fail({.code = ErrorCode::aborted, .detail = error.what()});
  }
  return kBetweenLooks;
}

void NcclWatchdog::look() {
  auto const now = Clock::now();
  bool const answered = progress_.request_look();
  std::uint64_t const done = progress_.operations_done();
  CallMatcher::Agreed const agreed = compare();
  bool const more = done != done_ || agreed.everywhere != agreed_.everywhere;
  done_ = done;
  agreed_ = agreed;
  if (calls_->failure().is_set()) return;
  if (nothing_is_left()) {
    timeout_.reset();
    if (now >= busy_until_ && !news_->is_speaker()) fall_asleep();
    return;
  }
  busy_until_ = now + kAwake;
  bool const behind = answered && progress_.is_behind_other_work(done + 1);
  if (more || behind || !timeout_) timeout_.emplace(group_.waiting.timeout);
  auto const waits = wait(agreed.here);
  if (!waits) return;
  look_for_lost_ranks(*waits);
  look_at_nccl();
  look_at_deadline(*waits);
}

bool NcclWatchdog::nothing_is_left() const {
  return progress_.operations_done() == calls_->published() && agreed_.here >= progress_.collectives_done();
}

// A caller publishes its operation, then checks whether this thread sleeps. This thread says that it sleeps,
// then checks for a published operation. So at least one of the two sees what the other did.
void NcclWatchdog::fall_asleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  if (!nothing_is_left()) asleep_ = false;
}

std::optional<NcclWatchdog::Wait> NcclWatchdog::wait(std::uint64_t agreed) const {
  std::uint64_t const done = progress_.operations_done();
  std::uint64_t const published = calls_->published();
  // One group can hold more operations than can still be read.
  constexpr std::uint64_t kReadable = PublishedCalls::kRecords / 2;
  std::uint64_t const oldest = std::max(done + 1, published - std::min(published, kReadable));
  for (std::uint64_t number = oldest; number <= published; ++number) {
    auto const said = calls_->record(number);
    if (!said) break;
    Wait wait = wait_in(*said);
    if (!wait.missing.empty()) return wait;
  }
  if (auto const said = calls_->record(oldest)) return wait_in(*said);
  // The GPU has done everything, but not every rank has called everything.
  for (std::uint64_t number = done; number > 0; --number) {
    auto const said = calls_->record(number);
    if (!said) break;
    if (said->sequence == agreed + 1) return wait_in(*said);
  }
  return std::nullopt;
}

NcclWatchdog::Wait NcclWatchdog::wait_in(Fingerprint const& operation) const {
  std::lock_guard const lock(ledger_mutex_);
  return {operation, matcher_.missing(operation)};
}

std::string NcclWatchdog::activity(Wait const& wait) const {
  return describe_activity(wait.operation, group_.world_ranks);
}

// A dead rank ends all operations under way; a rank that left in order ends only those that wait for it. The
// last calls of a rank of another host may become known after it has left.
void NcclWatchdog::look_for_lost_ranks(Wait const& wait) {
  auto lost = dead_member();
  if (!lost) {
    bool const is_long = timeout_->waited() >= nccl::kLostRankGrace;
    lost = find_lost(group_, [&](std::size_t member) {
      if (!calls_->sees(member)) return is_long;
      bool const is_missing = std::ranges::find(wait.missing, member) != wait.missing.end();
      return is_missing && (is_long || calls_->is_here(member));
    });
  }
  if (lost) fail(loss_of(std::move(*lost), group_.me(), activity(wait)));
}

void NcclWatchdog::look_at_nccl() {
  ncclResult_t const result = handles_->asynchronous_error();
  if (result == ncclSuccess) return;
  auto const now = Clock::now();
  if (!nccl_failed_) nccl_failed_ = now;
  if (now - *nccl_failed_ >= nccl::kLostRankGrace) {
    fail({.code = nccl::code_of(result), .detail = nccl::describe(result, "an operation on its way")});
  }
}

void NcclWatchdog::look_at_deadline(Wait const& wait) {
  if (!timeout_->ended()) return;
  if (!wait.missing.empty()) {
    Failure failure = wait_in_vain(group_.me(), group_, activity(wait), wait.missing);
    failure.detail += describe_hosts(group_.world_ranks, wait.missing, group_.host_names);
    for (std::size_t const member : wait.missing) {
      note_stopped(failure, group_.world_ranks[member], calls_->process(member));
    }
    note_silence(failure);
    return fail(failure);
  }
  char const* const others = calls_->sees_all()
                                 ? ", which every rank has called; look for a GPU that hangs or is busy with "
                                   "something else (nvidia-smi)"
                                 : " for other ranks; look at what they are doing";
  Failure failure{.code = ErrorCode::timeout,
                  .manner = Failure::Manner::silent,
                  .operation = activity(wait),
                  .by = group_.me(),
                  .waited = group_.waiting.timeout,
                  .detail = text(others, ", or raise ", group_.waiting.timeout_setting)};
  note_silence(failure);
  fail(failure);
}

void NcclWatchdog::note_silence(Failure& failure) const {
  constexpr std::size_t kMostNamed = 4;
  std::string& words = failure.detail;
  auto const silent = news_->silent_hosts();
  for (std::size_t i = 0; i < std::min(silent.size(), kMostNamed); ++i) {
    words += text("; nothing was heard of ", group_.host_names[silent[i].first_rank], " for ",
                  seconds(silent[i].lasted), " s: can it be reached, and are its ranks stopped?");
  }
  if (silent.size() > kMostNamed)
    words += text(" So it is with ", silent.size() - kMostNamed, " other hosts.");
  std::size_t const speaker = calls_->first_here();
  if (!silent.empty() && speaker != group_.rank.index()) {
    note_stopped(failure, group_.world_ranks[speaker], calls_->process(speaker));
  }
}

}  // namespace ddp
