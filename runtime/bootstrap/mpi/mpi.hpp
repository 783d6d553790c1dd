// MPI as the control plane uses it: its start and end, and how ranks find rank 0.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ddp/core/deadline.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::mpi {

/// Throws CommError(io) with MPI's words unless `result`, what a function of MPI returned, is success.
void check(int result, char const* doing);

/// Makes sure that MPI runs in this process, with calls from any thread allowed. One that the program
/// initialised is used as it is, and left to the program to finalise; otherwise this initialises it, and
/// finalises it when the process exits, if nobody stays by then.
///
/// MPI_Init waits for all ranks and cannot be interrupted: `overdue` is called, in another thread, if it has
/// not returned by the deadline. Throws Error(unsupported) for an MPI that was finalised already, or that
/// allows calls from one thread only.
void start(Deadline deadline, std::function<void()> const& overdue);

/// Of MPI_COMM_WORLD, after start().
[[nodiscard]] Rank world_rank();
[[nodiscard]] int world_size();
/// "Open MPI v4.1.4".
[[nodiscard]] std::string library();

/// Finalises MPI now, if it is ours: for a process that turned out to be alone in it, so that nothing of it
/// is left in the temporary directory, whatever ends the process.
void end_now() noexcept;

/// From now on MPI is not finalised when the process exits, until go() was called as often.
void stay() noexcept;
void go() noexcept;

/// All ranks of MPI_COMM_WORLD, apart from the program's own messages. Its MPI communicator is never freed.
class Everyone {
 public:
  /// Collective. Throws CommError(timeout) if a rank does not come by the deadline, as the functions do.
  explicit Everyone(Deadline deadline);

  /// Whether it is the same on every rank.
  [[nodiscard]] bool have_equal(std::uint64_t number) const;
  /// Rank 0's bytes.
  [[nodiscard]] std::string broadcast(std::string bytes) const;

 private:
  Deadline deadline_;
  void* comm_;  // an MPI_Comm
};

}  // namespace ddp::mpi
