#include "comm/shm/barrier.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <utility>

#include "core/system/process_stat.hpp"

namespace ddp::shm {
namespace {

// How often a rank polls before it sleeps. kSpins take about 20 µs to 80 µs, depending on the processor,
// which is longer than waking a thread takes. On a shared core so long a spin would keep the missing rank
// from running.
constexpr int kSpins = 2000;
constexpr int kSpinsOnASharedCore = 20;
// How long a rank sleeps before it checks for lost peers and its deadline again.
constexpr std::chrono::milliseconds kNap{20};

void pause_briefly() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, timespec const* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

bool reached(std::uint32_t value, std::uint32_t stage) noexcept {
  return static_cast<std::int32_t>(value - stage) >= 0;  // correct across the wrap
}

}  // namespace

Barrier::Barrier(Region region, MemberGroup const& members)
    : region_(region), members_(members), spins_(members_.waiting.may_spin ? kSpins : kSpinsOnASharedCore) {
  region_.slot(members_.rank.index()).process = ::getpid();
}

void Barrier::begin(Fingerprint const& operation) {
  throw_if_failed();
  operation_ = operation;
}

bool Barrier::spins() const noexcept { return spins_ == kSpins; }

void Barrier::post(Word& word) noexcept {
  word.value.fetch_add(1, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) != 0) futex(word.value, FUTEX_WAKE, INT_MAX, nullptr);
}

void Barrier::arrive() noexcept {
  ++stage_;
  post(region_.slot(members_.rank.index()).arrived);  // counts stages, one by one
}

bool Barrier::arrived(std::size_t rank) const noexcept {
  return reached(region_.slot(rank).arrived.value.load(std::memory_order_acquire), stage_);
}

// Waits until ready(), sleeping on `word`. missing() gives the members that it waits for. `timeout`: one
// deadline for all waits of a barrier, from its first sleep on.
template <class Ready, class Missing>
void Barrier::wait(Word& word, Ready ready, Missing missing, std::optional<PausingDeadline>& timeout) {
  for (int i = 0; i < spins_; ++i) {
    if (ready()) return;
    pause_briefly();
  }
  if (!timeout) timeout.emplace(members_.waiting.timeout);
  for (;;) {
    std::uint32_t const seen = word.value.load(std::memory_order_seq_cst);
    if (ready()) return;
    throw_if_failed();
    check_lost(ready, missing);
    if (timeout->ended()) {
      auto const absent = missing();
      Failure failure =
          wait_in_vain(members_.me(), members_, describe_activity(operation_, members_.world_ranks), absent);
      for (std::size_t const member : absent) {
        note_stopped(failure, members_.world_ranks[member], region_.slot(member).process);
      }
      fail_and_throw(failure);
    }
    word.sleepers.fetch_add(1, std::memory_order_seq_cst);
    timespec const nap{0, std::chrono::nanoseconds(kNap).count()};
    futex(word.value, FUTEX_WAIT, seen, &nap);
    word.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

template <class Ready, class Missing>
void Barrier::check_lost(Ready ready, Missing missing) {
  auto lost = find_lost(members_, [&](std::size_t member) {
    auto const awaited = missing();
    return std::find(awaited.begin(), awaited.end(), member) != awaited.end();
  });
  // The lost rank may have done its part before it left or died: check once more.
  if (!lost || ready()) return;
  fail_and_throw(
      loss_of(std::move(*lost), members_.me(), describe_activity(operation_, members_.world_ranks)));
}

void Barrier::wait_for_all() {
  std::optional<PausingDeadline> timeout;
  for (std::size_t peer = 0; peer < region_.size(); ++peer) {
    if (arrived(peer)) continue;
    wait(
        region_.slot(peer).arrived, [this, peer] { return arrived(peer); },
        [this] {
          std::vector<std::size_t> missing;
          for (std::size_t r = 0; r < region_.size(); ++r) {
            if (!arrived(r)) missing.push_back(r);
          }
          return missing;
        },
        timeout);
  }
}

void Barrier::fail(Failure failure) noexcept {
  failure.ended_by = members_.me();
  if (!region_.failure().set(failure)) return;
  for (std::size_t rank = 0; rank < region_.size(); ++rank) {
    futex(region_.slot(rank).arrived.value, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void Barrier::fail_and_throw(Failure const& failure) {
  fail(failure);
  throw_if_failed();
  throw CommError(failure);  // another rank's is being written at this moment
}

}  // namespace ddp::shm
