#include "comm/nccl/calls/host_news.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "bootstrap/wire.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kBetweenLetters{50};
constexpr std::size_t kHostsAtThatPace = 16;
// The most operations of a rank that are sent at a time, the latest ones: about as many as a host can call in
// 50 ms. Others are sent as unknown.
constexpr std::uint64_t kMostOperations = PublishedCalls::kRecords / 2;
// In one message, which stays below 4 KiB: MPI then needs no answer of the receiver, which may be gone.
constexpr std::uint64_t kMostInLetter = 64;
constexpr std::chrono::milliseconds kBetweenSigns{500};
constexpr std::chrono::milliseconds kLongSilence{1500};

enum class What : char { calls = 'c', failure = 'f' };

// What follows What::calls, unless it is a mere sign of life; as many as `operations` of Call follow it.
struct Calls {
  std::uint32_t rank;  // of the communicator
  std::uint32_t operations;
  std::uint64_t published;    // with these
  std::uint64_t collectives;  // with these; 0: not sent
};

// One operation. An unknown one was overwritten before it was sent.
struct Call {
  Fingerprint said;
  bool known;
};

template <class T>
void append(std::string& letter, T const& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  letter.append(reinterpret_cast<char const*>(&value), sizeof(value));
}

template <class T>
T take(Letter const& letter, std::size_t& place) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (letter.bytes.size() - place < sizeof(T)) {
    throw CommError(ErrorCode::protocol,
                    text("rank ", letter.from, " sent ", letter.bytes.size(),
                         " bytes about its host's operations, which end too early; do all ranks run the same "
                         "version of this library?"));
  }
  T value;
  std::memcpy(&value, letter.bytes.data() + place, sizeof(value));
  place += sizeof(value);
  return value;
}

}  // namespace

HostNews::HostNews(MemberGroup const& group, std::shared_ptr<PublishedCalls> calls)
    : control_(group.control),
      channel_(group.name),
      world_ranks_(group.world_ranks),
      calls_(std::move(calls)),
      told_(world_ranks_.size()) {
  if (calls_->is_on_one_host() || !calls_->sees_all()) return;
  auto const& hosts = calls_->hosts();
  speaks_ = hosts[group.rank.index()] == group.rank.index();
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (calls_->is_here(r)) {
      here_.push_back(r);
    } else if (hosts[r] == r) {
      others_.push_back(r);
    }
  }
  period_ = kBetweenLetters * (1 + others_.size() / kHostsAtThatPace);
  if (!speaks_) return;
  for (std::size_t const r : others_) calls_->write_down_letter(r);  // they have just met
}

void HostNews::exchange() {
  if (!speaks_) return;
  while (auto const letter = control_->take(channel_)) hear(*letter);
  auto const now = Clock::now();
  if (now - told_at_ < period_) return;
  bool const is_news =
      std::ranges::any_of(here_, [&](std::size_t r) { return calls_->published(r) != told_[r]; });
  if (!is_news && now - told_at_ < kBetweenSigns) return;
  told_at_ = now;
  if (is_news) return tell_new_calls();
  std::string sign;
  append(sign, What::calls);
  tell(sign);
}

void HostNews::say_the_rest() noexcept {
  if (!speaks_) return;
  try {
    tell_new_calls();
  } catch (std::exception const& error) {  // no memory
    log(LogLevel::error, error.what());
  }
}

void HostNews::tell_new_calls() {
  for (std::size_t const r : here_) {
    std::uint64_t const collectives = calls_->collectives(r);  // before the operations, which then hold them
    std::uint64_t const published = calls_->published(r);
    std::uint64_t first = published - std::min(published - told_[r], kMostOperations) + 1;
    for (; first <= published; first += kMostInLetter) {
      std::uint64_t const last = std::min(first + kMostInLetter - 1, published);
      tell_of(r, first, last, last == published ? collectives : 0);
    }
    told_[r] = published;
  }
}

void HostNews::tell_of(std::size_t rank, std::uint64_t first, std::uint64_t last, std::uint64_t collectives) {
  std::string letter;
  append(letter, What::calls);
  append(letter, Calls{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(last - first + 1), last,
                       collectives});
  for (std::uint64_t number = first; number <= last; ++number) {
    auto const said = calls_->record(rank, number);
    append(letter, Call{said.value_or(Fingerprint{}), said.has_value()});
  }
  tell(letter);
}

void HostNews::tell_failure(Failure const& failure) const noexcept {
  try {
    std::string letter;
    append(letter, What::failure);
    tell(letter.append(wire::encode_failure(failure, GroupFailure::kMostBytes)));
  } catch (std::exception const& error) {
    log(LogLevel::error, text("telling the other hosts of a failure: ", error.what()));
  }
}

// If sending to one host fails, the others get the message all the same. lost() may tell the cause.
void HostNews::tell(std::string_view letter) const noexcept {
  for (std::size_t const r : others_) {
    try {
      control_->post(world_ranks_[r], channel_, letter);
    } catch (std::exception const& error) {
      log(LogLevel::debug, text("a letter to rank ", world_ranks_[r], ": ", error.what()));
    }
  }
}

std::vector<HostNews::Silence> HostNews::silent_hosts() const {
  std::vector<Silence> hosts;
  for (std::size_t const r : others_) {
    auto const lasted = calls_->since_letter(r);
    if (lasted >= std::max(kLongSilence, 3 * period_)) hosts.push_back({r, lasted});
  }
  return hosts;
}

void HostNews::hear(Letter const& letter) {
  auto const sender = std::ranges::find(world_ranks_, letter.from) - world_ranks_.begin();
  if (sender < std::ssize(world_ranks_)) calls_->write_down_letter(static_cast<std::size_t>(sender));
  std::size_t place = 0;
  if (take<What>(letter, place) == What::calls) return hear_calls(letter);
  try {
    calls_->failure().set(wire::decode_failure(std::string_view(letter.bytes).substr(place)));
  } catch (Error const& error) {
    throw CommError(ErrorCode::protocol, text("rank ", letter.from, " sent a failure: ", error.what()));
  }
}

void HostNews::hear_calls(Letter const& letter) {
  for (std::size_t place = sizeof(What); place < letter.bytes.size();) {
    auto const calls = take<Calls>(letter, place);
    std::size_t const rank = calls.rank;
    if (rank >= world_ranks_.size() || calls_->is_here(rank)) {
      throw CommError(ErrorCode::protocol, text("rank ", letter.from, " tells of operations of rank ", rank,
                                                " of the group, which is not of its host"));
    }
    std::uint64_t const unknown = calls.published - calls.operations;
    while (calls_->published(rank) < unknown) calls_->write_down(rank, std::nullopt);
    for (std::uint32_t i = 0; i < calls.operations; ++i) {
      auto const call = take<Call>(letter, place);
      calls_->write_down(rank, call.known ? std::optional(call.said) : std::nullopt);
    }
    if (calls.collectives != 0) calls_->write_down_collectives(rank, calls.collectives);
  }
}

}  // namespace ddp
