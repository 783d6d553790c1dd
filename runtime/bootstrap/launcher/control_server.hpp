// The server's side of LauncherClient: what ddp-launch runs for its ranks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// Serves put, get, all_gather and the news of lost ranks to the ranks of one job, over an AF_UNIX socket in
/// a directory of mode 0700 that it makes and removes. One thread: the owner's event loop calls process()
/// when poll_fd() is readable. Connections of other users (peer credentials), garbage, oversized and overdue
/// frames are dropped without harm to the other ranks, and memory is bounded.
class ControlServer {
 public:
  /// What a server is told.
  struct Options {
    int size = 1;                                    ///< ranks of the job
    std::string parent_directory = {};               ///< empty: TMPDIR, or /tmp
    std::chrono::milliseconds frame_deadline{5000};  ///< a started frame must be complete by then
  };
  /// What a rank did.
  struct Event {
    /// What happened.
    enum class Kind { joined, left, disconnected, error, progress };
    Kind kind;                             ///< what happened
    Rank rank;                             ///< whose event it is
    pid_t pid = 0;                         ///< of the peer, from the socket's credentials
    ErrorCode code = ErrorCode::protocol;  ///< of `error`
    std::string text;                      ///< of `error` and `progress`
  };

  explicit ControlServer(Options options);  ///< Makes the directory and listens. Throws Error(io).
  ~ControlServer();
  ControlServer(ControlServer const&) = delete;
  ControlServer& operator=(ControlServer const&) = delete;

  /// The socket's path, for DDP_CONTROL.
  [[nodiscard]] std::string const& path() const noexcept;
  /// Readable when process() has something to do: frames, new connections, overdue frames.
  [[nodiscard]] int poll_fd() const noexcept;
  /// Does what can be done without blocking and returns what happened, in order.
  [[nodiscard]] std::vector<Event> process();
  /// The owner and the ranks were stopped together for so long: no deadline of a frame ran meanwhile.
  void leave_out(std::chrono::nanoseconds stopped);
  /// The owner knows that a rank is gone (its process ended): every rank is told, waits that need it fail.
  void declare_lost(LostRank const& lost);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
