// MPI as the control plane uses it: its start and end, and bytes between its ranks.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ddp/core/deadline.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::mpi {

/// Throws CommError(io) with MPI's words unless `result`, what a function of MPI returned, is success.
void check(int result, char const* doing);

/// Makes sure that MPI runs in this process, with calls from any thread allowed. One that the program
/// initialised is used as it is, and left to the program to finalise; otherwise this initialises it, and
/// finalises it when the process exits, if all Stays have ended by then.
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
/// Whether start() initialised MPI.
[[nodiscard]] bool is_ours();

/// Finalises MPI now, if it is ours: for a process that turned out to be alone in it, so that nothing of it
/// is left in the temporary directory, whatever ends the process.
void end_now() noexcept;

/// Before MPI ends at exit, `last(orderly)` is called; orderly: no Stay is left, and MPI_Finalize follows.
void before_end(std::function<void(bool orderly)> last);

/// While one exists, MPI is not finalised when the process exits.
class Stay {
 public:
  Stay();
  ~Stay();
  Stay(Stay const&) = delete;
  Stay& operator=(Stay const&) = delete;
};

/// Bytes between all ranks of MPI_COMM_WORLD, apart from the program's own messages. Any thread. Its MPI
/// communicator is never freed, since messages to ranks that no longer listen may be on their way.
class Messages {
 public:
  struct Letter {
    Rank from;
    std::string bytes;
  };

  /// Collective. Throws CommError(timeout) if a rank does not come by the deadline.
  explicit Messages(Deadline deadline);
  ~Messages();
  Messages(Messages const&) = delete;
  Messages& operator=(Messages const&) = delete;

  /// Starts sending and returns. Tags: 0 to 32767. `awaited`: whether all_sent() waits for it.
  void send(Rank to, int tag, std::string bytes, bool awaited = true);
  /// The next message with this tag; nullopt if none is there. `from`: nullopt takes anybody's.
  [[nodiscard]] std::optional<Letter> receive(std::optional<Rank> from, int tag);
  /// Whether nothing is left to be sent that is awaited.
  [[nodiscard]] bool all_sent();

 private:
  struct Handle;
  struct Outgoing;
  void drop_sent();

  Handle* handle_;  // never freed
  std::mutex mutex_;
  std::unique_ptr<std::list<Outgoing>> outgoing_;
};

}  // namespace ddp::mpi
