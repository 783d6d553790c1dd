// MPI as the control plane uses it: its start and end, and how ranks find rank 0.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>

#include "ddp/core/deadline.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::mpi {

/// Throws CommError(io) with MPI's words unless `result`, what a function of MPI returned, is success.
void check(int result, char const* doing);
/// The same, but returns false where a rank that takes part has gone: Open MPI 5 says so where
/// its fault tolerance is on. Who it is, and why, the control plane tells.
[[nodiscard]] bool got_through(int result, char const* doing);

/// Makes sure that MPI runs in this process, with calls from any thread allowed. One that the program
/// initialised is used as it is, and left to the program to finalise; otherwise this initialises it, and
/// finalises it when the process exits, if nobody stays by then.
///
/// MPI_Init waits for all ranks and cannot be interrupted: `overdue` is called, in another thread, if it has
/// not returned by the deadline. Throws Error(unsupported) for an MPI that was finalised already, or that
/// allows calls from one thread only.
void start(Deadline deadline, std::function<void()> const& overdue);

/// What start() does for a program's own communicator, without starting MPI. Throws Error(unsupported), and
/// Error(invalid_argument) for a communicator that cannot be used.
void check_own(MPI_Comm comm);

/// After start().
[[nodiscard]] Rank rank_in(MPI_Comm comm);
[[nodiscard]] int size_of(MPI_Comm comm);
/// "Open MPI v4.1.4".
[[nodiscard]] std::string library();

/// Finalises MPI now, if it is ours: for a process that turned out to be alone in it, so that nothing of it
/// is left in the temporary directory, whatever ends the process.
void end_now() noexcept;

/// From now on MPI is not finalised when the process exits, until go() was called as often.
void stay() noexcept;
void go() noexcept;

/// All ranks of a communicator, apart from the program's own messages. Its duplicate is never freed.
class Everyone {
 public:
  /// Collective. Throws CommError(timeout) if a rank does not come by the deadline, as the functions do.
  Everyone(MPI_Comm comm, Deadline deadline);

  /// Whether it is the same on every rank.
  [[nodiscard]] bool have_equal(std::uint64_t number) const;
  /// Rank 0's bytes.
  [[nodiscard]] std::string broadcast(std::string bytes) const;
  /// The duplicate: of MPI's errors its functions return. Valid until MPI ends.
  [[nodiscard]] MPI_Comm const* comm() const noexcept { return comm_; }

 private:
  Deadline deadline_;
  MPI_Comm const* comm_;
};

}  // namespace ddp::mpi
