#include "comm/nccl/calls/remote_calls.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "bootstrap/wire.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kAnswerTime{1000};
// How many operations that the GPU has done are told too: those since the last step's head, which may have
// been done with garbage.
constexpr std::uint64_t kDoneOperations = 512;
constexpr std::uint64_t kMostOperations = PublishedCalls::kRecords / 2;

enum class What : char { question = 'q', calls = 'c', failure = 'f' };

// What follows What::question.
struct Question {
  std::uint32_t answer_to;  // a rank of the communicator, the first of its host
};

// What follows What::calls. Then come `ranks` of RankCalls, and `operations` of Call.
struct HostCalls {
  std::uint32_t ranks;
  std::uint32_t operations;  // the latest of the host's first rank
  std::uint64_t published;   // by that rank, with these
};
struct RankCalls {
  std::uint64_t rank;  // of the communicator
  std::uint64_t collectives;
};
// One operation. An unknown one was overwritten before it was told.
struct Call {
  Fingerprint said;
  bool known;
};

template <class T>
void append(std::string& bytes, T const& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<char const*>(&value), sizeof(value));
}

template <class T>
T take(std::string_view& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) {
    throw Error(ErrorCode::protocol, "it ends too early; do all ranks run the same version of this library?");
  }
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

}  // namespace

RemoteCalls::RemoteCalls(MemberGroup const& group, std::shared_ptr<PublishedCalls> calls)
    : control_(group.control),
      name_(group.name),
      me_(group.me()),
      world_ranks_(group.world_ranks),
      calls_(std::move(calls)) {
  auto const& hosts = calls_->hosts();
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (calls_->is_here(r)) {
      here_.push_back(r);
    } else if (hosts[r] == r) {
      others_.push_back(r);
    }
  }
}

bool RemoteCalls::listen(std::function<void()> wake) {
  if (others_.empty() || world_ranks_[here_[0]] != me_) return true;
  stop_listening();
  wake_ = std::move(wake);
  listening_ = control_->listen(name_, [this](Rank from, std::string_view bytes) { hear(from, bytes); });
  return listening_ != nullptr;
}

bool RemoteCalls::serve(std::uint64_t done) {
  std::vector<std::size_t> askers;
  bool heard = false;
  {
    std::lock_guard const lock(mutex_);
    askers.assign(askers_.begin(), askers_.end());
    askers_.clear();
    heard = std::exchange(heard_calls_, false);
  }
  if (!askers.empty()) tell(askers, own_calls(done));
  return heard;
}

bool RemoteCalls::find_out(std::chrono::steady_clock::time_point not_before) const {
  if (others_.empty()) return true;
  if (calls_->begin_question(not_before)) {
    std::string question;
    append(question, What::question);
    append(question, Question{static_cast<std::uint32_t>(here_[0])});
    tell(others_, question);
    return false;
  }
  auto const waited = calls_->since_question();
  return waited && (*waited >= kAnswerTime || silent_hosts().empty());
}

std::vector<std::size_t> RemoteCalls::silent_hosts() const {
  std::vector<std::size_t> silent;
  std::ranges::copy_if(others_, std::back_inserter(silent),
                       [this](std::size_t rank) { return !calls_->knows(rank); });
  return silent;
}

std::string RemoteCalls::own_calls(std::uint64_t done) const {
  std::size_t const first_rank = here_[0];
  std::string bytes;
  append(bytes, What::calls);
  std::string counts;
  for (std::size_t const r : here_) append(counts, RankCalls{r, calls_->collectives(r)});
  std::uint64_t const published = calls_->published(first_rank);  // after the counts, which it then covers
  std::uint64_t const operations =
      std::min(published - std::min(published, done) + kDoneOperations, std::min(published, kMostOperations));
  append(bytes, HostCalls{static_cast<std::uint32_t>(here_.size()), static_cast<std::uint32_t>(operations),
                          published});
  bytes += counts;
  for (std::uint64_t number = published - operations + 1; number <= published; ++number) {
    auto const said = calls_->record(first_rank, number);
    append(bytes, Call{said.value_or(Fingerprint{}), said.has_value()});
  }
  return bytes;
}

void RemoteCalls::tell_failure(Failure const& failure) const noexcept {
  if (others_.empty()) return;
  try {
    std::string bytes;
    append(bytes, What::failure);
    tell(others_, bytes.append(wire::encode_failure(failure, GroupFailure::kMostBytes)));
  } catch (std::exception const& error) {  // no memory
    log(LogLevel::error, text("telling the other hosts of a failure: ", error.what()));
  }
}

void RemoteCalls::tell(std::vector<std::size_t> const& whom, std::string_view bytes) const {
  std::vector<Rank> ranks;
  for (std::size_t const rank : whom) ranks.push_back(world_ranks_[rank]);
  try {
    control_->notify(ranks, name_, bytes);
  } catch (Error const& error) {  // the control plane has failed: lost() may tell why
    log(LogLevel::debug, text("telling other hosts of ", name_, ": ", error.what()));
  }
}

void RemoteCalls::hear(Rank from, std::string_view bytes) noexcept {
  try {
    switch (take<What>(bytes)) {
      case What::question: {
        std::size_t const asker = take<Question>(bytes).answer_to;
        if (std::ranges::find(others_, asker) == others_.end()) {
          throw Error(ErrorCode::protocol, text("an answer is to go to rank ", asker, " of the group"));
        }
        std::lock_guard const lock(mutex_);
        askers_.insert(asker);
        break;
      }
      case What::calls:
        hear_calls(from, bytes);
        break;
      case What::failure:
        calls_->failure().set(wire::decode_failure(bytes));
        break;
      default:
        throw Error(ErrorCode::protocol, "it is of no known kind");
    }
  } catch (std::exception const& error) {
    Failure failure{.code = ErrorCode::protocol};
    failure.detail = text("rank ", from, " sent a notice that cannot be read: ", error.what());
    failure.ended_by = me_;
    calls_->failure().set(failure);
  }
  wake_();
}

void RemoteCalls::hear_calls(Rank from, std::string_view bytes) {
  auto const host = take<HostCalls>(bytes);
  auto const sender = std::ranges::find(others_, from, [this](std::size_t r) { return world_ranks_[r]; });
  if (sender == others_.end() || host.operations > host.published) {
    throw Error(ErrorCode::protocol, "it tells of calls that are not its own");
  }
  std::vector<RankCalls> counts;
  for (std::uint32_t i = 0; i < host.ranks; ++i) {
    auto const calls = counts.emplace_back(take<RankCalls>(bytes));
    if (calls.rank >= world_ranks_.size() || calls_->hosts()[calls.rank] != *sender) {
      throw Error(ErrorCode::protocol, text("it tells of rank ", calls.rank, " of the group"));
    }
  }
  std::uint64_t number = host.published - host.operations;
  calls_->skip_to(*sender, number);
  for (std::uint32_t i = 0; i < host.operations; ++i) {
    auto const call = take<Call>(bytes);
    if (++number <= calls_->published(*sender)) continue;  // known from an earlier answer
    calls_->write_down(*sender, call.known ? std::optional(call.said) : std::nullopt);
  }
  for (RankCalls const& calls : counts) calls_->write_down_collectives(calls.rank, calls.collectives);
  calls_->write_down_answer(*sender);
  std::lock_guard const lock(mutex_);
  heard_calls_ = true;
}

}  // namespace ddp
