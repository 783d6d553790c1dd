// The server through which ranks find each other: in ddp-launch, or in a thread of rank 0 (HostedServer).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/control_store.hpp"
#include "bootstrap/server/rank_connection.hpp"
#include "bootstrap/wire.hpp"
#include "core/pausing_deadline.hpp"
#include "core/system/private_descriptor.hpp"
#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// Serves put, get, all_gather and the news of lost ranks to the ranks of one job, over a Unix socket, and
/// over TCP where it is given a socket for that. One thread: the owner's event loop calls process() when
/// poll_fd() is readable. Connections of other users (peer credentials) or without the
/// secret, garbage, oversized and overdue frames are dropped without harm to the other ranks, and memory is
/// bounded.
class ControlServer {
 public:
  /// What a server is told.
  struct Options {
    int size = 1;                                    ///< ranks of the job
    std::string path = {};                           ///< of the Unix socket; empty: one without a file
    std::chrono::milliseconds frame_deadline{5000};  ///< a started frame must be complete by then
    int generation = 0;                              ///< ranks of another one are refused (RankInfo)
    std::string secret = {};                         ///< what ranks of other hosts must say first
    int min_ranks = 0;       ///< ControlStore::Limits::min_ranks: the fewest that may rebuild(), 0 for never
    bool of_rank_0 = false;  ///< in its process: when it leaves, `network` is free for its next World
  };
  /// What a rank did.
  struct Event {
    /// What happened.
    enum class Kind {
      joined,
      left,
      disconnected,
      error,
      ended,
      late,    ///< it did not come to a rebuild() in time, and counts as lost: its process is to be ended
      rebuilt  ///< all that live have come to a rebuild(), `rank` first
    };
    Kind kind;                ///< what happened
    Rank rank;                ///< whose event it is
    pid_t pid = 0;            ///< of the peer, from the socket's credentials; 0 over TCP
    int process = 0;          ///< its number on its host, as the rank says
    std::string host{};       ///< the host's name, as the rank says
    Failure failure{};        ///< of `error` and `disconnected`
    std::string words{};      ///< of `ended`: what the guard of its process says
    Membership membership{};  ///< of `rebuilt`, without values
  };

  /// Listens. `network`: listens for ranks of other hosts, or empty. Throws Error(io), and
  /// Error(invalid_argument) for a path that is too long for a socket.
  explicit ControlServer(Options options, FileDescriptor network = {});
  ControlServer(ControlServer const&) = delete;
  ControlServer& operator=(ControlServer const&) = delete;

  /// Of the Unix socket, for DDP_CONTROL. Any thread.
  [[nodiscard]] std::string const& path() const noexcept { return options_.path; }
  [[nodiscard]] ControlTraffic const& traffic() const noexcept { return traffic_; }
  /// Readable when process() has something to do: frames, new connections, overdue frames.
  [[nodiscard]] int poll_fd() const noexcept { return epoll_.get(); }
  /// Does what can be done without blocking and returns what happened, in order.
  [[nodiscard]] std::vector<Event> process();
  /// For the owner, when a rank's process has ended: tells every rank, and makes waits for that rank fail.
  void declare_lost(Failure const& lost);
  /// For the owner, before it starts a new process for `rank`, which was lost: that process may join.
  void let_come_back(Rank rank);
  /// For the owner: the guards of ranks that have ended may end, or that of `rank`.
  void let_guards_go(std::optional<Rank> rank = {});

 private:
  using Clock = Deadline::Clock;

  /// The time of a clock that stands while this process is stopped: deadlines of frames are times of it.
  [[nodiscard]] Clock::time_point awake() { return Clock::time_point{} + awake_.waited(); }
  void watch(int operation, int descriptor, std::uint64_t id, std::uint32_t events);
  void watch_listeners(std::uint32_t events);
  [[nodiscard]] bool accept_one(bool from_network);
  void greet(RankConnection& connection, wire::Frame const& frame);
  Event& happened(Event::Kind kind, RankConnection const& connection);
  void pass_on(Rank from, wire::Frame const& frame);
  void tell_of_lost();
  void tell_of_newcomer();
  /// Drops the oldest connection that has not joined; false if all have joined.
  bool drop_oldest_stranger();
  void serve(RankConnection& connection);
  void handle(RankConnection& connection, wire::Frame frame);
  void join(RankConnection& connection, wire::Frame const& frame);
  [[nodiscard]] std::string why_of_another_job(wire::Join const& join) const;
  [[nodiscard]] std::string why_not(wire::Join const& join, pid_t pid) const;
  void hear_end(RankConnection& connection, wire::Frame const& frame);
  void deliver(ControlStore::Answers const& answers);
  void lose_awaited_by(ControlStore::Ticket ticket);
  void break_overdue();
  void sweep();
  void set_timer();

  Options const options_;
  ControlStore::Value const here_;  ///< what a rank that joins hears
  ControlStore store_;
  PrivateDescriptor listener_;
  std::optional<PrivateDescriptor> network_;  ///< in rank 0's process until that leaves
  FileDescriptor timer_;
  FileDescriptor epoll_;
  PausingDeadline awake_{Deadline::Duration::max()};
  std::string buffer_;
  ControlTraffic traffic_;
  std::map<std::uint64_t, RankConnection> connections_;  ///< by id, so in the order of their arrival
  std::map<Rank, RankConnection*> of_rank_;              ///< those that have joined
  std::uint64_t next_id_ = 3;                            ///< behind those of the listeners and the timer
  std::vector<Failure> untold_;                          ///< lost ranks of which nobody has heard
  std::optional<Clock::time_point> tell_at_;             ///< when the others are to hear of them
  Clock::time_point tell_at_latest_;                     ///< tell_at_ moves no further
  std::optional<Clock::time_point> accept_again_;        ///< set while file descriptors are used up
  int membership_ = 0;                                   ///< the last that the owner was told of
  std::vector<Event> events_;
};

}  // namespace ddp
