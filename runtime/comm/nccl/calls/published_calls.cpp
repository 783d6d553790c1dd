#include "comm/nccl/calls/published_calls.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace ddp {
namespace {

constexpr std::size_t kPage = 4096;
static_assert(sizeof(GroupFailure) <= kPage);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// In place of word kWhat: which operation it was is not known. No kind has this number.
constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

constexpr auto kRelaxed = std::memory_order_relaxed;

std::chrono::milliseconds milliseconds_now() noexcept {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}

constexpr std::chrono::milliseconds kQuestionLasts{2000};
constexpr unsigned kSinceBits = SinceLastStep::kBits;
constexpr std::uint32_t kGaveUp = std::uint32_t{1} << 31U;

using Words = std::array<std::uint64_t, 4>;
static_assert(sizeof(Fingerprint) == sizeof(Words) && std::has_unique_object_representations_v<Fingerprint>);
// The word of all that is no number of its own.
constexpr std::size_t kWhat = offsetof(Fingerprint, kind) / sizeof(std::uint64_t);

}  // namespace

struct PublishedCalls::Record {
  std::array<std::atomic<std::uint64_t>, 4> words;  // of a Fingerprint
};

struct PublishedCalls::Slot {
  alignas(64) std::atomic<std::uint64_t> published;
  std::atomic<std::uint64_t> collectives;
  // The latest step and the one before. Each is the number of the collective that began it, a hash of all
  // until then, and SinceLastStep in the lowest bits. No rank is two steps ahead.
  std::atomic<std::uint64_t> steps[2];
  std::atomic<std::int32_t> process;
  // Milliseconds of a clock that a host's processes share. By the first rank of each host: its latest answer;
  // of this host, the latest question.
  std::atomic<std::int64_t> answered_at;
  std::atomic<std::int64_t> asked_at;
  std::atomic<std::uint32_t> ended;  // of a host's first rank: how many of the host have, and kGaveUp
  Record records[kRecords];
};

std::shared_ptr<SharedMemory> PublishedCalls::make_memory(int size) {
  Bytes const bytes{kPage + static_cast<std::size_t>(size) * sizeof(Slot)};
  return std::make_shared<SharedMemory>(SharedMemory::create(bytes, false));
}

PublishedCalls::PublishedCalls(std::shared_ptr<SharedMemory> memory, Rank rank,
                               std::vector<std::size_t> hosts)
    : memory_(std::move(memory)),
      me_(rank.index()),
      hosts_(std::move(hosts)),
      on_one_host_(std::ranges::count(hosts_, hosts_[0]) == std::ssize(hosts_)) {
  slot(me_).process = ::getpid();
}

GroupFailure& PublishedCalls::failure() const noexcept {
  return *reinterpret_cast<GroupFailure*>(memory_->data());
}

pid_t PublishedCalls::process(std::size_t rank) const noexcept {
  return is_here(rank) ? slot(rank).process.load() : 0;
}

PublishedCalls::Slot& PublishedCalls::slot(std::size_t rank) const noexcept {
  return reinterpret_cast<Slot*>(memory_->data() + kPage)[rank];
}

std::uint64_t PublishedCalls::digest(std::uint64_t before, Fingerprint const& operation) noexcept {
  std::uint64_t const what = std::bit_cast<Words>(operation)[kWhat];
  for (std::uint64_t const word : {operation.count, what, operation.begins.which()}) {
    before = (before ^ word) * 0x9e3779b97f4a7c15U;
    before ^= before >> 32U;
  }
  return before;
}

void PublishedCalls::append(Slot& slot, std::optional<Fingerprint> const& operation) noexcept {
  auto words = std::bit_cast<Words>(operation.value_or(Fingerprint{}));
  if (!operation) words[kWhat] = kUnknown;
  std::uint64_t const number = slot.published.load(kRelaxed) + 1;
  Record& record = slot.records[number % kRecords];
  // A reader of a part of this record also sees that the record before is published, which record() needs.
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); ++i) record.words[i].store(words[i], kRelaxed);
  // In one total order with NcclCallGate::shut(): see NcclCallGate for the reason.
  slot.published.store(number, std::memory_order_seq_cst);
}

void PublishedCalls::publish(Fingerprint operation) noexcept {
  Slot& mine = slot(me_);
  operation.sequence = mine.collectives.load(kRelaxed) + 1;
  append(mine, operation);
  called_ = digest(called_, operation);
  if (operation.begins.begins()) {
    step_began_ = operation.sequence;
    begins_ = operation.begins;
    mine.steps[++steps_ % 2].store(
        operation.sequence << 32U | (called_ << kSinceBits & 0xffffffffU) | operation.begins.since().bits,
        std::memory_order_release);
  }
  // Last: a reader that sees the count can read the record, unless it is overwritten, and its step.
  mine.collectives.store(operation.sequence, std::memory_order_release);
}

void PublishedCalls::write_down(std::size_t rank, std::optional<Fingerprint> const& operation) noexcept {
  append(slot(rank), operation);
}

void PublishedCalls::write_down_collectives(std::size_t rank, std::uint64_t collectives) noexcept {
  slot(rank).collectives.store(collectives, std::memory_order_release);
}

void PublishedCalls::skip_to(std::size_t rank, std::uint64_t number) noexcept {
  Slot& theirs = slot(rank);
  if (theirs.published.load(kRelaxed) + kRecords < number) theirs.published.store(number - kRecords);
  while (theirs.published.load(kRelaxed) < number) append(theirs, std::nullopt);
}

void PublishedCalls::write_down_answer(std::size_t rank) noexcept {
  slot(rank).answered_at.store(milliseconds_now().count(), std::memory_order_release);
}

bool PublishedCalls::begin_question(std::chrono::steady_clock::time_point not_before) noexcept {
  auto& asked_at = slot(first_here()).asked_at;
  std::int64_t before = asked_at.load();
  bool const is_fresh = std::chrono::milliseconds(before) >= not_before.time_since_epoch();
  if (is_fresh && since_question()) return false;
  return asked_at.compare_exchange_strong(before, milliseconds_now().count());
}

std::optional<std::chrono::milliseconds> PublishedCalls::since_question() const noexcept {
  auto const since = milliseconds_now() - std::chrono::milliseconds(slot(first_here()).asked_at.load());
  return since < kQuestionLasts ? std::optional(since) : std::nullopt;
}

bool PublishedCalls::knows(std::size_t rank) const noexcept {
  if (is_here(rank)) return true;
  std::int64_t const answered_at = slot(hosts_[rank]).answered_at.load(std::memory_order_acquire);
  return since_question() && answered_at >= slot(first_here()).asked_at.load();
}

bool PublishedCalls::all_began_this_step() const noexcept {
  for (std::size_t r = 0; r < hosts_.size(); ++r) {
    if (is_here(r) && !mark_of_this_step(r)) return false;
  }
  return true;
}

std::optional<StepMark> PublishedCalls::mark_of_this_step(std::size_t rank) const noexcept {
  std::uint64_t const mine = slot(me_).steps[steps_ % 2].load(kRelaxed);
  std::uint64_t const theirs = slot(rank).steps[steps_ % 2].load(std::memory_order_acquire);
  if (mine >> kSinceBits != theirs >> kSinceBits) return std::nullopt;
  constexpr std::uint64_t kSince = (1U << kSinceBits) - 1;
  return StepMark{begins_.which() | (theirs & kSince) << StepMark::kSince};
}

std::uint64_t PublishedCalls::published(std::size_t rank) const noexcept {
  return slot(rank).published.load(std::memory_order_seq_cst);
}

std::uint64_t PublishedCalls::collectives(std::size_t rank) const noexcept {
  return slot(rank).collectives.load(std::memory_order_acquire);
}

std::optional<Fingerprint> PublishedCalls::record(std::size_t rank, std::uint64_t number) const noexcept {
  Slot const& theirs = slot(rank);
  if (number == 0 || theirs.published.load(std::memory_order_acquire) < number) return std::nullopt;
  Record const& record = theirs.records[number % kRecords];
  Words words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = record.words[i].load(kRelaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  // The slot may have been overwritten meanwhile, even by the operation after the last published one.
  if (theirs.published.load(kRelaxed) + 1 >= number + kRecords || words[kWhat] == kUnknown)
    return std::nullopt;
  return std::bit_cast<Fingerprint>(words);
}

void PublishedCalls::come_to_end() noexcept { slot(first_here()).ended.fetch_add(1); }

PublishedCalls::End PublishedCalls::end() const noexcept { return end_of(slot(first_here()).ended.load()); }

PublishedCalls::End PublishedCalls::give_up_end() noexcept {
  std::atomic<std::uint32_t>& ended = slot(first_here()).ended;
  std::uint32_t seen = ended.load();
  while (end_of(seen) == End::awaits && !ended.compare_exchange_weak(seen, seen | kGaveUp)) {
  }
  return end_of(ended.load());
}

PublishedCalls::End PublishedCalls::end_of(std::uint32_t ended) const noexcept {
  if ((ended & kGaveUp) != 0) return End::alone;
  return ended == std::ranges::count(hosts_, first_here()) ? End::together : End::awaits;
}

}  // namespace ddp
