// The side of the watchdog that callers and waits see.
#include "comm/nccl/watchdog.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/last_operation.hpp"
#include "comm/nccl/check.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// How long the end of a communicator waits for operations that are still on a stream.
constexpr std::chrono::milliseconds kLongestRest = std::chrono::seconds(10);
// How long a rank looks for others to begin a step before it sleeps between looks: their hosts keep pace.
constexpr auto kStepSpin = std::chrono::microseconds(20);

// Of all communicators; never destroyed, since one may live until the process ends.
ServiceThread& watchdogs() {
  static auto* const thread = new ServiceThread;
  return *thread;
}

}  // namespace

NcclWatchdog::NcclWatchdog(NcclConnection connection)
    : group_(std::move(connection.group)),
      handles_(std::move(connection.handles)),
      board_(std::move(connection.board)),
      progress_(group_.device),
      ledger_(board_, group_.rank, group_.world_ranks),
      gate_(board_),
      ending_(group_, handles_, gate_) {
  watchdogs().add(*this);
}

NcclWatchdog::~NcclWatchdog() {
  if (!closed_) close();
}

NcclWatchdog::Call::Call(NcclWatchdog& watchdog, CudaStream& stream)
    : watchdog_(watchdog), stream_(stream), on_(stream) {
  watchdog.check();
  if (!watchdog.progress_.is_on(stream)) watchdog.progress_.follow(stream, watchdog.shared_from_this());
  first_ = watchdog.board_->published() + 1;
}

void NcclWatchdog::begin(CudaStream& stream, std::uint64_t first) {
  if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]] {
    asleep_ = false;
    look_soon();
  }
  if (gate_.is_shut()) [[unlikely]] {
    check();
  }
  progress_.before(first, stream);
}

void NcclWatchdog::fail_call(ncclResult_t result, std::string_view doing) const {
  Deadline const news = Deadline::after(nccl::kLostRankGrace);
  while (!news.expired()) {
    check();
    if (auto const dead = dead_member()) {
      fail(ErrorCode::peer_lost, describe_loss(*dead, group_.me(), doing));
      continue;
    }
    std::this_thread::sleep_for(kNap);
  }
  std::string const message = nccl::describe(result, doing);
  fail(nccl::code_of(result), message);
  check();
  throw CommError(nccl::code_of(result), message);
}

void NcclWatchdog::fail(ErrorCode code, std::string_view reason) const noexcept {
  static_cast<void>(board_->failure().set(code, group_.me(), reason));
  look_soon();
}

void NcclWatchdog::look_soon() noexcept { watchdogs().wake(); }

void NcclWatchdog::check() const {
  if (!ending_.is_retired()) board_->failure().throw_if_set(group_.me());
}

std::uint64_t NcclWatchdog::compare() const {
  std::lock_guard const lock(ledger_mutex_);
  if (auto const difference = ledger_.compare()) fail(ErrorCode::mismatch, *difference);
  return ledger_.agreed();
}

void NcclWatchdog::settle(std::uint64_t through) const {
  check();
  while (!ending_.is_retired() && !ending_.is_aborted() && compare() < through) {
    check();
    std::this_thread::sleep_for(kNap);
  }
  check();
}

bool NcclWatchdog::settle_step() const {
  check();
  if (!board_->sees_peers()) return false;
  if (board_->all_began_this_step()) return true;
  auto const begin = Clock::now();
  while (Clock::now() - begin < kStepSpin) {
    if (board_->all_began_this_step()) return true;
  }
  settle(board_->step_began());
  return true;
}

bool NcclWatchdog::is_busy() const {
  return progress_.operations_done() < board_->published() && !progress_.stream_is_idle();
}

// Between two looks of the thread lies far more time than an operation takes.
void NcclWatchdog::finish_operations(char const* what) const {
  check();
  if (!is_busy()) return;
  wait_for_operations(
      what, group_.waiting.timeout, [this] { return progress_.operations_done() == board_->published(); },
      [&] {
        check();
        if (progress_.stream_is_capturing()) {
          throw Error(ErrorCode::invalid_state,
                      text(what,
                           ": operations of this communicator are being captured into a CUDA graph; "
                           "end the capture first"));
        }
        look_soon();
      },
      [this](std::string const& message) { fail(ErrorCode::timeout, message); });
}

std::optional<LostRank> NcclWatchdog::dead_member() const {
  return find_lost(group_, [](std::size_t) { return false; });
}

void NcclWatchdog::close() noexcept {
  GroupFailure const& failure = board_->failure();
  try {
    Patience rest(std::min(group_.waiting.timeout, kLongestRest));
    while (!failure.is_set() && is_busy()) {
      if (rest.ended()) {
        fail(ErrorCode::aborted,
             text("rank ", group_.me(), " ended its communicator while operations were on a stream"));
      }
      std::this_thread::sleep_for(kNap);
    }
  } catch (Error const& error) {
    fail(error.code(), error.what());
  }
  watchdogs().remove(*this);
  closed_ = true;
  ending_.finish(!failure.is_set() && !dead_member());
  progress_.stop();
}

}  // namespace ddp
