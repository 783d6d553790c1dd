// What the watchdog's thread looks at.
#include <algorithm>
#include <optional>
#include <utility>

#include "bootstrap/describe_hosts.hpp"
#include "comm/last_operation.hpp"
#include "comm/nccl/check.hpp"
#include "comm/nccl/watch/watchdog.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(10);
// How long it goes on checking when nothing is under way: waking it would cost a caller more than the checks.
constexpr auto kAwake = std::chrono::seconds(1);

}  // namespace

std::optional<std::chrono::milliseconds> NcclWatchdog::serve() noexcept {
  GroupFailure const& failure = calls_->failure();
  if (teardown_.has_begun()) return std::nullopt;
  try {
    if (remote_->serve(progress_.operations_done())) compare();
    if (asleep_ && !failure.is_set()) return std::nullopt;
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
  std::uint64_t const agreed = compare();
  bool const more = done != done_ || agreed != agreed_;
  done_ = done;
  agreed_ = agreed;
  if (calls_->failure().is_set()) return;
  if (nothing_is_left()) {
    timeout_.reset();
    if (now >= busy_until_) fall_asleep();
    return;
  }
  busy_until_ = now + kAwake;
  bool const behind = answered && progress_.is_behind_other_work(done + 1);
  if (more || behind || !timeout_) {
    timeout_.emplace(group_.waiting.timeout);
    asks_since_.reset();
  }
  auto const waits = wait(agreed);
  if (!waits) return;
  look_for_lost_ranks(*waits);
  look_at_nccl();
  look_at_deadline(*waits);
}

bool NcclWatchdog::nothing_is_left() const {
  return progress_.operations_done() == calls_->published() && agreed_ >= progress_.collectives_done();
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

// A dead rank ends all operations under way; a rank that left in order ends only those that wait for it. One
// of another host, which may not be there to answer, is blamed only where it can be nobody else.
void NcclWatchdog::look_for_lost_ranks(Wait const& wait) {
  auto lost = dead_member();
  if (!lost) {
    lost = find_lost(group_, [&](std::size_t member) {
      auto const is_missing = [&](Wait const& now) {
        return std::ranges::find(now.missing, member) != now.missing.end();
      };
      if (calls_->is_here(member)) return is_missing(wait);
      if (timeout_->waited() < nccl::kLostRankGrace || !find_out()) return false;
      Wait const now = wait_in(wait.operation);
      return is_missing(now) || (now.missing.empty() && !calls_->knows(member) && all_that_stay_are_known());
    });
  }
  if (lost) fail(loss_of(std::move(*lost), group_.me(), activity(wait)));
}

bool NcclWatchdog::find_out() {
  std::size_t const losses = group_.control->lost().size();
  if (!asks_since_ || losses != losses_) asks_since_ = Clock::now() - kTogether;
  losses_ = losses;
  return remote_->find_out(*asks_since_);
}

bool NcclWatchdog::all_that_stay_are_known() const {
  auto const lost = group_.control->lost();
  for (std::size_t r = 0; r < group_.world_ranks.size(); ++r) {
    auto const is_it = [&](Failure const& failure) { return failure.ranks.front() == group_.world_ranks[r]; };
    if (!calls_->knows(r) && std::ranges::none_of(lost, is_it)) return false;
  }
  return true;
}

// Operations that differ, or a lost rank, may be why NCCL fails: they are named then.
void NcclWatchdog::look_at_nccl() {
  ncclResult_t const result = handles_->asynchronous_error();
  if (result == ncclSuccess) return;
  auto const now = Clock::now();
  if (!nccl_failed_) nccl_failed_ = now;
  if (!remote_->find_out(*nccl_failed_ - kTogether)) return;
  compare();
  if (calls_->failure().is_set() || now - *nccl_failed_ < nccl::kLostRankGrace) return;
  fail({.code = nccl::code_of(result), .detail = nccl::describe(result, "an operation on its way")});
}

void NcclWatchdog::look_at_deadline(Wait const& wait) {
  if (!timeout_->ended() || !find_out()) return;
  compare();
  if (calls_->failure().is_set()) return;
  // Ranks of a host that does not answer count as missing.
  auto missing = wait_in(wait.operation).missing;
  for (std::size_t r = 0; r < calls_->hosts().size(); ++r) {
    if (!calls_->knows(r)) missing.push_back(r);
  }
  if (missing.empty() && opening_) {  // NCCL's connecting has a deadline of its own, which begins now
    all_came_ = true;
    timeout_.emplace(group_.waiting.timeout);
    return;
  }
  std::ranges::sort(missing);
  Failure failure{.code = ErrorCode::timeout,
                  .manner = Failure::Manner::silent,
                  .operation = activity(wait),
                  .by = group_.me(),
                  .waited = group_.waiting.timeout,
                  .detail = text(", which every rank has called; look for a GPU that hangs or is busy with "
                                 "something else (nvidia-smi), or raise ",
                                 group_.waiting.timeout_setting)};
  if (!missing.empty()) {
    failure = wait_in_vain(group_.me(), group_, activity(wait), missing);
    failure.detail += describe_hosts(group_.world_ranks, missing, group_.host_names);
    for (std::size_t const member : missing) {
      note_stopped(failure, group_.world_ranks[member], calls_->process(member));
    }
    note_silence(failure);
  }
  fail(failure);
}

void NcclWatchdog::note_silence(Failure& failure) const {
  constexpr std::size_t kMostNamed = 4;
  std::string& words = failure.detail;
  auto const silent = remote_->silent_hosts();
  for (std::size_t i = 0; i < std::min(silent.size(), kMostNamed); ++i) {
    words += text("; nothing was heard of ", group_.host_names[silent[i]],
                  " for 1 s: can it be reached, and are its ranks stopped?");
  }
  if (silent.size() > kMostNamed) {
    words += text(" So it is with ", silent.size() - kMostNamed, " other hosts.");
  }
  std::size_t const first = calls_->first_here();  // it hears for this host
  if (!silent.empty() && first != group_.rank.index()) {
    note_stopped(failure, group_.world_ranks[first], calls_->process(first));
  }
}

}  // namespace ddp
