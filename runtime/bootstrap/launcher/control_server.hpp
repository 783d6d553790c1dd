// The server's side of LauncherClient: what ddp-launch runs for its ranks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/control_store.hpp"
#include "bootstrap/launcher/server_connection.hpp"
#include "bootstrap/launcher/server_socket.hpp"
#include "bootstrap/wire.hpp"
#include "core/system/file_descriptor.hpp"
#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// Serves put, get, all_gather and notices of lost ranks to the ranks of one job, over an AF_UNIX socket in a
/// directory of mode 0700 that it makes and removes. One thread: the owner's event loop calls process() when
/// poll_fd() is readable. Connections of other users (peer credentials), garbage, oversized and overdue
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
    Kind kind;            ///< what happened
    Rank rank;            ///< whose event it is
    pid_t pid = 0;        ///< of the peer, from the socket's credentials
    Failure failure{};    ///< of `error` and `disconnected`
    Progress progress{};  ///< of `progress`
  };

  explicit ControlServer(Options options);  ///< Makes the directory and listens. Throws Error(io).
  ControlServer(ControlServer const&) = delete;
  ControlServer& operator=(ControlServer const&) = delete;

  /// The socket's path, for DDP_CONTROL.
  [[nodiscard]] std::string const& path() const noexcept { return listener_.path(); }
  /// Readable when process() has something to do: frames, new connections, overdue frames.
  [[nodiscard]] int poll_fd() const noexcept { return epoll_.get(); }
  /// Does what can be done without blocking and returns what happened, in order.
  [[nodiscard]] std::vector<Event> process();
  /// The owner and the ranks were stopped together for this long: the deadlines of frames move by it.
  void leave_out(std::chrono::nanoseconds stopped);
  /// For the owner, when a rank's process has ended: tells every rank, and makes waits for that rank fail.
  void declare_lost(Failure const& lost);

 private:
  using Clock = Deadline::Clock;

  void watch(int operation, int descriptor, std::uint64_t id, std::uint32_t events);
  [[nodiscard]] bool accept_one();
  /// Drops the oldest connection that has not joined; false if all have joined.
  bool drop_oldest_stranger();
  void serve(std::uint64_t id, ServerConnection& connection);
  void handle(std::uint64_t id, ServerConnection& connection, wire::Frame frame);
  void join(std::uint64_t id, ServerConnection& connection, wire::Frame const& frame);
  [[nodiscard]] std::string why_not(wire::Join const& join, pid_t pid) const;
  void deliver(ControlStore::Answers const& answers);
  void break_overdue();
  void sweep();
  void set_timer();

  Options const options_;
  ControlStore store_;
  ServerSocket listener_;
  FileDescriptor timer_;
  FileDescriptor epoll_;
  std::string buffer_;
  std::map<std::uint64_t, ServerConnection> connections_;  ///< by id, so in the order of their arrival
  std::map<Rank, std::uint64_t> of_rank_;                  ///< connection of each rank that has joined
  std::uint64_t next_id_ = 2;                              ///< behind those of the listener and the timer
  std::optional<Clock::time_point> alarm_;
  std::optional<Clock::time_point> accept_again_;  ///< set while file descriptors are used up
  std::vector<Event> events_;
};

}  // namespace ddp
