#include "comm/mpi/group.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "bootstrap/server/hosted_control.hpp"
#include "bootstrap/wire.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kMostGrace{2000};  ///< after a deadline, for rank 0 to say who is missing
constexpr milliseconds kUntilTold{30};    ///< by then a rank's own words are here
constexpr milliseconds kUntilHeard{300};  ///< by then rank 0 certainly knows of a failure

template <class T>
std::span<std::byte const> bytes_of(T const& value) {
  return std::as_bytes(std::span(&value, 1));
}

bool mpi_is_over() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

}  // namespace

bool Group::Pace::next() {
  constexpr std::uint32_t kBetween = 256;  // every so many polls one also reads the clock
  constexpr microseconds kNap{50};
  ++looks_;
  if (scarce_) std::this_thread::yield();
  if (looks_ % (scarce_ ? 16 : kBetween) != 0) return false;
  auto const now = std::chrono::steady_clock::now();
  if (begin_ == std::chrono::steady_clock::time_point{}) begin_ = now;
  auto const waited = now - begin_;
  if (waited > milliseconds(20)) {
    std::this_thread::sleep_for(waited > milliseconds(200) ? 4 * kNap : kNap);
    looks_ = scarce_ ? 15 : kBetween - 1;  // from now on every poll checks all
  } else if (waited > milliseconds(1)) {
    std::this_thread::yield();
  }
  return true;
}

Group::Group(MPI_Comm comm, std::uint64_t id, MemberGroup const& members)
    : comm_(comm),
      id_(id),
      members_(members),
      timeout_(members_.waiting.timeout),
      arrivals_(size()),
      present_(size()),
      outgoing_(std::make_unique<std::list<Outgoing>>()) {
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Group::~Group() {
  if (mpi_is_over()) return;
  bool const unsent = std::ranges::any_of(*outgoing_, [](Outgoing& out) {
    int done = 0;
    return MPI_Test(&out.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0;
  });
  if (unsent) static_cast<void>(outgoing_.release());  // MPI may still read these: they stay
  if (!unsent && !failure_.is_set()) MPI_Comm_free(&comm_);
}

std::string Group::activity() const { return describe_activity(operation_, members_.world_ranks); }

void Group::begin(Fingerprint const& operation) {
  throw_if_failed();
  operation_ = operation;
  timeout_ = PausingDeadline(members_.waiting.timeout);
}

void Group::meet(Arrival const& mine, std::span<double> factors) {
  if (rank() == 0) return meet_as_first(mine, factors);
  meet_as_other(mine, factors);
}

void Group::meet_as_first(Arrival const& mine, std::span<double> factors) {
  present_.assign(size(), false);
  present_[0] = true;
  arrivals_[0] = mine;
  std::size_t missing = size() - 1;
  wait(
      [&] {
        while (missing != 0) {
          auto const letter = take(std::nullopt, Tag::arrival);
          if (!letter) return false;
          if (letter->bytes.size() != sizeof(Arrival)) {
            throw CommError(ErrorCode::protocol, text("rank ", members_.world_ranks[letter->from],
                                                      " speaks another version of this library"));
          }
          std::memcpy(&arrivals_[letter->from], letter->bytes.data(), sizeof(Arrival));
          present_[letter->from] = true;
          --missing;
        }
        return true;
      },
      [&] {
        std::vector<std::size_t> members;
        for (std::size_t r = 0; r < size(); ++r) {
          if (!present_[r]) members.push_back(r);
        }
        return members;
      });
  auto const difference = find_difference(
      [this](std::size_t r) -> Fingerprint const& { return arrivals_[r].said; }, members_.world_ranks);
  if (difference) fail_and_throw(*difference);
  for (std::size_t r = 0; r < factors.size(); ++r) factors[r] = arrivals_[r].factor;
  let_go_on(factors);
}

// From here on every rank completes the operation, whatever fails meanwhile.
void Group::let_go_on(std::span<double const> factors) {
  hear_failure();
  std::lock_guard const lock(decision_);
  failure_.throw_if_set(members_.me());
  for (std::size_t r = 1; r < size(); ++r) post(r, Tag::verdict, std::as_bytes(factors));
}

void Group::meet_as_other(Arrival const& mine, std::span<double> factors) {
  constexpr std::size_t kFirst = 0;
  post(kFirst, Tag::arrival, bytes_of(mine));
  std::optional<PausingDeadline> asked;
  std::optional<PausingDeadline> leaves;
  auto verdict = take(kFirst, Tag::verdict);
  for (Pace pace(!members_.waiting.may_spin); !verdict; verdict = take(kFirst, Tag::verdict)) {
    if (!pace.next()) continue;
    hear_failure();
    if (failure_.is_set()) {
      if (!leaves) leaves.emplace(kUntilHeard);
      if (!first_knows_ && !leaves->ended()) continue;
      if ((verdict = take(kFirst, Tag::verdict))) break;  // sent before rank 0 knew of the failure
      failure_.throw_if_set(members_.me());
    }
    if (auto lost = find_lost({kFirst})) {
      fail(loss_of(std::move(*lost), members_.me(), activity()));
    } else if (!asked && timeout_.ended()) {
      // Rank 0 knows which ranks are missing, unless it is missing itself.
      post(kFirst, Tag::late, bytes_of(mine.said.sequence));
      asked.emplace(std::min(kMostGrace, members_.waiting.timeout));
    } else if (asked && asked->ended()) {
      fail(wait_of(rank(), {kFirst}));
    }
  }
  std::memcpy(factors.data(), verdict->bytes.data(), std::min(verdict->bytes.size(), factors.size_bytes()));
}

void Group::answer_late_ones(std::vector<std::size_t> const& missing) {
  if (rank() != 0) return;
  auto const letter = take(std::nullopt, Tag::late);
  std::uint64_t sequence = 0;
  if (!letter || letter->bytes.size() != sizeof(sequence)) return;
  std::memcpy(&sequence, letter->bytes.data(), sizeof(sequence));
  if (operation_.sequence == sequence) fail_by_deadline_of(letter->from, missing);
}

void Group::fail_by_deadline_of(std::size_t member, std::vector<std::size_t> const& missing) {
  Failure failure = wait_of(member, missing);
  failure.ended_by = failure.by;
  set_failure(failure, false);
  throw_if_failed();
}

// A rank that ended with an error has told it by a message, which may come after the news of its end.
std::optional<Failure> Group::find_lost(std::vector<std::size_t> const& awaited) {
  auto lost = ddp::find_lost(
      members_, [&](std::size_t member) { return std::ranges::find(awaited, member) != awaited.end(); });
  if (!lost || lost->manner == Failure::Manner::left) return lost;
  if (!lost_since_) lost_since_ = Deadline::Clock::now();
  if (Deadline::Clock::now() - *lost_since_ < kUntilTold) lost.reset();
  return lost;
}

Failure Group::wait_of(std::size_t member, std::vector<std::size_t> const& missing) const {
  Failure failure = wait_in_vain(members_.world_ranks[member], members_, activity(), missing);
  std::vector<Rank> const ranks = failure.ranks;
  failure.detail += hosts_of(*members_.control, ranks);
  note_stopped(failure, *members_.control, ranks);
  return failure;
}

// Tells the others the reason before they notice that this process is gone. An earlier failure is the reason.
void Group::end_process(Failure failure) {
  try {
    throw_if_failed();
  } catch (CommError const& error) {
    failure = error.failure();
  }
  fail(failure);
  CommError const error(failure);
  members_.control->report_failure(error);
  log(LogLevel::error,
      text(error.what(), ". MPI is in the middle of it and cannot be interrupted, so this process ends"));
  std::_Exit(EXIT_FAILURE);
}

void Group::post(std::size_t to, Tag tag, std::span<std::byte const> bytes) {
  std::lock_guard const lock(outgoing_mutex_);
  int done = 0;
  bool const is_over =
      !outgoing_->empty() &&
      (!got_through(MPI_Test(&outgoing_->front().request, &done, MPI_STATUS_IGNORE), "MPI_Isend") ||
       done != 0);
  if (is_over) {
    outgoing_->splice(outgoing_->end(), *outgoing_, outgoing_->begin());
  } else {
    outgoing_->emplace_back();
  }
  Outgoing* const slot = &outgoing_->back();
  slot->bytes.assign(bytes.begin(), bytes.end());
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): the slot waits for it, with MPI_Test
  static_cast<void>(got_through(MPI_Isend(slot->bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE,
                                          static_cast<int>(to), static_cast<int>(tag), comm_, &slot->request),
                                "MPI_Isend"));
}

std::optional<Group::Letter> Group::take(std::optional<std::size_t> from, Tag tag) {
  return receive(from, tag, incoming_);
}

std::optional<Group::Letter> Group::receive(std::optional<std::size_t> from, Tag tag,
                                            std::vector<std::byte>& bytes) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  auto const look = [&](int source) {
    return got_through(MPI_Improbe(source, static_cast<int>(tag), comm_, &found, &message, &status),
                       "MPI_Improbe");
  };
  bool const looked = look(from ? static_cast<int>(*from) : MPI_ANY_SOURCE);
  // Once a rank has gone, MPI may refuse to look at all of them.
  for (std::size_t r = 0; !from && !looked && found == 0 && r < size(); ++r) {
    static_cast<void>(look(static_cast<int>(r)));
  }
  if (found == 0) return std::nullopt;
  int count = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  bytes.resize(static_cast<std::size_t>(count));
  if (!got_through(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv"))
    return std::nullopt;
  return Letter{static_cast<std::size_t>(status.MPI_SOURCE), bytes};
}

void Group::hear_failure() {
  std::vector<std::byte> bytes;
  auto const letter = receive(std::nullopt, Tag::failure, bytes);
  if (!letter) return;
  std::string_view const notice(reinterpret_cast<char const*>(bytes.data()), bytes.size());
  std::string_view const id = notice.substr(0, sizeof(id_));
  if (std::memcmp(id.data(), &id_, id.size()) != 0) return;  // of an older group, whose place this one has
  set_failure(wire::decode_failure(notice.substr(id.size())), true);
  if (letter->from == 0) first_knows_ = true;
}

// The rank that finds a failure tells the others; rank 0 passes on what it hears.
void Group::set_failure(Failure const& failure, bool heard) noexcept {
  std::unique_lock lock(decision_, std::defer_lock);
  if (rank() == 0) lock.lock();
  if (failure_.set(failure) && (!heard || rank() == 0)) tell(failure);
}

// The group's id, and the failure.
void Group::tell(Failure const& failure) noexcept {
  if (mpi_is_over()) return;
  try {
    std::string notice(reinterpret_cast<char const*>(&id_), sizeof(id_));
    notice += wire::encode_failure(failure, GroupFailure::kMostBytes);
    for (std::size_t r = 0; r < size(); ++r) {
      if (r != rank()) post(r, Tag::failure, std::as_bytes(std::span(notice)));
    }
  } catch (std::exception const& error) {
    log(LogLevel::error, text("telling the others of a failure: ", error.what()));
  }
}

void Group::fail(Failure failure) noexcept {
  failure.ended_by = members_.me();
  set_failure(failure, false);
}

void Group::throw_if_failed() {
  if (!mpi_is_over()) hear_failure();
  failure_.throw_if_set(members_.me());
}

void Group::fail_and_throw(Failure const& failure) {
  fail(failure);
  throw_if_failed();
  throw CommError(failure);  // another rank's is being written at this moment
}

}  // namespace ddp::mpi
