// How the ranks of a group over MPI agree on an operation, wait for each other, and fail together.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/mpi/mpi.hpp"
#include "comm/fingerprint.hpp"
#include "comm/group/group_failure.hpp"
#include "comm/group/members.hpp"
#include "core/pausing_deadline.hpp"
#include "ddp/bootstrap/control_plane.hpp"

namespace ddp::mpi {

/// Kinds of messages on a group's communicator.
enum class Tag : int { arrival = 1, verdict, late, failure, exchange };

/// One rank's end of a group. One thread at a time, but for fail() and throw_if_failed().
///
/// A transfer of MPI cannot be cancelled: a message of user memory keeps that memory until it is complete. So
/// every collective begins with a barrier, meet(): all ranks tell the group's rank 0 what they call, in small
/// messages of the group's own memory, which can be abandoned at any time; rank 0 compares, and lets all go
/// on. So deadlines, differences and lost ranks end an operation before MPI has touched user memory. After
/// the barrier, only the end of a process can keep a rank waiting. That wait has the same deadline; past it,
/// this process reports and exits.
///
/// Rank 0 alone decides whether all pass the barrier. A rank that has arrived and then learns of a failure
/// leaves when rank 0 says that it knows of the failure too, or has said nothing for a while.
class Group {
 public:
  struct Arrival {
    Fingerprint said;
    double factor = 1.0;
  };

  /// Takes `comm`, of `members`, which must outlive it. `id`: the same on every rank, and in no other group
  /// of the job.
  Group(MPI_Comm comm, std::uint64_t id, MemberGroup const& members);
  /// Frees the communicator, unless the group has failed: then messages of it may still be on the way.
  ~Group();
  Group(Group const&) = delete;
  Group& operator=(Group const&) = delete;

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] std::size_t rank() const noexcept { return members_.rank.index(); }
  [[nodiscard]] std::size_t size() const noexcept { return members_.world_ranks.size(); }

  /// Begins an operation, which errors name. Throws the group's failure.
  void begin(Fingerprint const& operation);
  /// Returns when every rank has called it with the same fingerprint. `factors`, if not empty, gets every
  /// rank's. Throws CommError.
  void meet(Arrival const& mine, std::span<double> factors);

  /// Waits until ready(), in a wait that cannot be abandoned: past the deadline, or when a rank has died, the
  /// process reports and exits. missing(): the members that it waits for.
  template <class Ready, class Missing>
  void complete(Ready ready, Missing missing);

  /// Makes every pending and later operation of every rank fail. The first one stays. Any thread.
  void fail(Failure failure) noexcept;
  /// Throws the group's failure, if it is known. Any thread.
  void throw_if_failed();

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  class Pace;

  // Waits until ready(). missing(): the members that it waits for. An exception may end the wait, so messages
  // that it waits for must not use memory that the caller frees. Throws CommError.
  template <class Ready, class Missing>
  void wait(Ready ready, Missing missing);
  // Starts sending a small message of memory that the group keeps.
  void post(std::size_t to, Tag tag, std::span<std::byte const> bytes);
  // The next message with this tag from `from`, or from any member; nothing if none is there. The bytes stay
  // until the next call.
  struct Letter {
    std::size_t from = 0;
    std::span<std::byte const> bytes;
  };
  [[nodiscard]] std::optional<Letter> take(std::optional<std::size_t> from, Tag tag);
  // The same, into `bytes`. Any thread.
  [[nodiscard]] std::optional<Letter> receive(std::optional<std::size_t> from, Tag tag,
                                              std::vector<std::byte>& bytes);

  // fail(), then throw it.
  [[noreturn]] void fail_and_throw(Failure const& failure);
  void meet_as_first(Arrival const& mine, std::span<double> factors);
  void meet_as_other(Arrival const& mine, std::span<double> factors);
  void let_go_on(std::span<double const> factors);
  void answer_late_ones(std::vector<std::size_t> const& missing);
  void fail_by_deadline_of(std::size_t member, std::vector<std::size_t> const& missing);
  [[nodiscard]] std::optional<Failure> find_lost(std::vector<std::size_t> const& awaited);
  void hear_failure();
  void set_failure(Failure const& failure, bool heard) noexcept;
  void tell(Failure const& failure) noexcept;
  [[nodiscard]] std::string activity() const;
  [[nodiscard]] Failure wait_of(std::size_t member, std::vector<std::size_t> const& missing) const;
  [[noreturn]] void end_process(Failure failure);

  MPI_Comm comm_;
  std::uint64_t id_;
  MemberGroup const& members_;
  Fingerprint operation_;
  PausingDeadline timeout_;
  std::vector<Arrival> arrivals_;  // on rank 0: what every rank said
  std::vector<bool> present_;      // on rank 0: which ranks have arrived
  std::vector<std::byte> incoming_;

  GroupFailure failure_{};
  std::atomic<bool> first_knows_{false};                   // rank 0 has said that it knows of the failure
  std::optional<Deadline::Clock::time_point> lost_since_;  // when the first rank was seen to be gone
  std::mutex decision_;                                    // on rank 0: either the group fails, or all go on
  std::mutex outgoing_mutex_;
  std::unique_ptr<std::list<Outgoing>> outgoing_;  // slots, used again, the oldest first
};

/// The pace of a wait: how to pause between polls, and which polls also check for failures and the deadline.
class Group::Pace {
 public:
  explicit Pace(bool cores_are_scarce) : scarce_(cores_are_scarce) {}
  /// Called after a poll that found nothing. Returns whether to check for failures and the deadline too.
  [[nodiscard]] bool next();

 private:
  bool scarce_;
  std::uint32_t looks_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

template <class Ready, class Missing>
void Group::wait(Ready ready, Missing missing) {
  for (Pace pace(!members_.waiting.may_spin); !ready();) {
    if (!pace.next()) continue;
    throw_if_failed();
    std::vector<std::size_t> const members = missing();
    answer_late_ones(members);
    if (auto lost = find_lost(members)) {
      // The lost rank may have done its part before it left: check once more.
      if (ready()) return;
      fail_and_throw(loss_of(std::move(*lost), members_.me(), activity()));
    }
    if (timeout_.ended() && !ready()) fail_by_deadline_of(rank(), members);
  }
}

template <class Ready, class Missing>
void Group::complete(Ready ready, Missing missing) {
  if (ready()) return;
  PausingDeadline timeout(members_.waiting.timeout);
  for (Pace pace(!members_.waiting.may_spin); !ready();) {
    if (!pace.next()) continue;
    if (auto lost = find_lost({})) end_process(loss_of(std::move(*lost), members_.me(), activity()));
    if (timeout.ended()) end_process(wait_of(rank(), missing()));
  }
}

}  // namespace ddp::mpi
