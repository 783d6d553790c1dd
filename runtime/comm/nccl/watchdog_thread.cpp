// What the watchdog does in the thread that looks.
#include <algorithm>
#include <optional>

#include "comm/nccl/check.hpp"
#include "comm/nccl/watchdog.hpp"
#include "core/process_stat.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(10);
// How long it goes on looking when nothing is on its way: waking it costs a caller more than it costs to
// look.
constexpr auto kAwake = std::chrono::seconds(1);

}  // namespace

std::optional<std::chrono::milliseconds> NcclWatchdog::serve() noexcept {
  GroupFailure const& failure = board_->failure();
  if (ending_.has_begun() || (asleep_ && !failure.is_set())) return std::nullopt;
  try {
    if (!failure.is_set()) look();
    if (failure.is_set()) {
      ending_.begin_to_abort();
      return std::nullopt;
    }
  } catch (Error const& error) {
    fail(error.code(), error.what());
  } catch (std::exception const& error) {
    fail(ErrorCode::aborted, error.what());
  }
  return kBetweenLooks;
}

void NcclWatchdog::look() {
  auto const now = Clock::now();
  bool const answered = progress_.request_look(gate_.returned());
  std::uint64_t const done = progress_.operations_done();
  std::uint64_t const agreed = compare();
  bool const more = done != done_ || agreed != agreed_;
  done_ = done;
  agreed_ = agreed;
  if (board_->failure().is_set()) return;
  if (nothing_is_left()) {
    patience_.reset();
    if (now >= busy_until_) fall_asleep();
    return;
  }
  busy_until_ = now + kAwake;
  bool const behind = answered && progress_.is_behind_other_work(done + 1);
  if (more || behind || !patience_) patience_.emplace(group_.waiting.timeout);
  auto const waits = wait(agreed);
  if (!waits) return;
  look_for_lost_ranks(*waits);
  look_at_nccl();
  look_at_deadline(*waits);
}

bool NcclWatchdog::nothing_is_left() const {
  return progress_.operations_done() == board_->published() && agreed_ >= progress_.collectives_done();
}

// A caller publishes its operation, then checks whether this thread sleeps. This thread says that it sleeps,
// then checks for a published operation. So one of the two sees the other.
void NcclWatchdog::fall_asleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  if (!nothing_is_left()) asleep_ = false;
}

std::optional<NcclWatchdog::Wait> NcclWatchdog::wait(std::uint64_t agreed) const {
  std::uint64_t const done = progress_.operations_done();
  std::uint64_t const published = board_->published();
  // One group can hold more operations than can still be read.
  constexpr std::uint64_t kReadable = PublishedCalls::kRecords / 2;
  std::uint64_t const oldest = std::max(done + 1, published - std::min(published, kReadable));
  for (std::uint64_t number = oldest; number <= published; ++number) {
    auto const said = board_->record(number);
    if (!said) break;
    Wait wait = wait_in(*said);
    if (!wait.missing.empty()) return wait;
  }
  if (auto const said = board_->record(oldest)) return wait_in(*said);
  // The GPU has done all, and not every rank has called all.
  for (std::uint64_t number = done; number > 0; --number) {
    auto const said = board_->record(number);
    if (!said) break;
    if (!is_message(said->kind) && said->sequence == agreed + 1) return wait_in(*said);
  }
  return std::nullopt;
}

NcclWatchdog::Wait NcclWatchdog::wait_in(Fingerprint const& operation) const {
  Wait wait{operation, {}};
  std::lock_guard const lock(ledger_mutex_);
  for (std::size_t const member : ledger_.missing(operation)) {
    wait.missing.push_back(group_.world_ranks[member]);
  }
  return wait;
}

std::string NcclWatchdog::activity(Wait const& wait) const {
  return describe_activity(wait.operation, group_.world_ranks);
}

// A dead rank ends whatever is on its way; one that left in order only what waits for it.
void NcclWatchdog::look_for_lost_ranks(Wait const& wait) {
  if (auto const dead = dead_member()) {
    fail(ErrorCode::peer_lost, describe_loss(*dead, group_.me(), activity(wait)));
    return;
  }
  bool const may_be_any = !board_->sees_peers() && patience_->waited() >= nccl::kLostRankGrace;
  auto const& waited_for = may_be_any ? group_.world_ranks : wait.missing;
  for (LostRank const& lost : group_.control->lost()) {
    if (std::find(waited_for.begin(), waited_for.end(), lost.rank) == waited_for.end()) continue;
    fail(ErrorCode::peer_lost, describe_loss(lost, group_.me(), activity(wait)));
    return;
  }
}

void NcclWatchdog::look_at_nccl() {
  ncclResult_t const result = handles_->asynchronous_error();
  if (result == ncclSuccess) return;
  auto const now = Clock::now();
  if (!nccl_failed_) nccl_failed_ = now;
  if (now - *nccl_failed_ >= nccl::kLostRankGrace) {
    fail(nccl::code_of(result), nccl::describe(result, "an operation on its way"));
  }
}

void NcclWatchdog::look_at_deadline(Wait const& wait) {
  if (!patience_->ended()) return;
  if (!wait.missing.empty()) {
    std::string words = describe_timeout(group_.me(), group_.waiting, activity(wait), wait.missing);
    for (std::size_t member = 0; member < group_.world_ranks.size(); ++member) {
      Rank const rank = group_.world_ranks[member];
      bool const missing = std::find(wait.missing.begin(), wait.missing.end(), rank) != wait.missing.end();
      if (missing) words += describe_stopped(rank, board_->process(member));
    }
    fail(ErrorCode::timeout, words);
    return;
  }
  char const* const others = board_->sees_peers() && !is_message(wait.operation.kind)
                                 ? ", which every rank has called; look for a GPU that hangs or is busy with "
                                   "something else (nvidia-smi)"
                                 : " for other ranks; look at what they are doing";
  fail(ErrorCode::timeout, text("rank ", group_.me(), " waited ", seconds(group_.waiting.timeout), " s in ",
                                activity(wait), others, ", or raise ", group_.waiting.timeout_setting));
}

}  // namespace ddp
