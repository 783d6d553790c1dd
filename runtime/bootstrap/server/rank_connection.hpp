// One connection as the control server holds it: a socket, what was read of a frame, what waits to be sent.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/control_store.hpp"
#include "bootstrap/wire.hpp"
#include "core/system/private_descriptor.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// What a server got and sent: what docs/cluster.md calculates with.
struct ControlTraffic {
  std::uint64_t frames_in = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t frames_out = 0;
  std::uint64_t bytes_out = 0;
};

/// Never blocks. Failures are kept: once broken() says why, nothing is read or sent any more.
class RankConnection {
 public:
  using Clock = Deadline::Clock;

  /// Limits of a rank's unread answers: above kPauseBytes its requests stay in its socket, above the others
  /// its connection is dropped.
  static constexpr std::size_t kPauseBytes = (1_MiB).value;
  static constexpr std::size_t kMostBytes = (1_GiB).value;
  static constexpr std::size_t kMostPieces = std::size_t{1} << 17;

  /// `pid`: the peer's, as far as that is known. `is_trusted`: it can join without the job's secret.
  /// Deadlines are times of the owner's clock. Adds to `traffic`, which outlives it.
  RankConnection(FileDescriptor socket, pid_t pid, bool is_trusted, Clock::time_point overdue,
                 ControlTraffic& traffic)
      : socket_(std::move(socket)),
        pid_(pid),
        knows_secret_(is_trusted),
        traffic_(traffic),
        overdue_(overdue) {}

  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// What its rank has said of itself; nullopt until then.
  [[nodiscard]] std::optional<wire::Join> const& who() const noexcept { return who_; }
  [[nodiscard]] std::optional<Rank> rank() const noexcept {
    return who_ ? std::optional(who_->rank) : std::nullopt;
  }
  [[nodiscard]] bool knows_secret() const noexcept { return knows_secret_; }
  void has_said_secret() noexcept { knows_secret_ = true; }
  /// It is no rank's, but that of a guard, which waits for the answer to `request`.
  void becomes_guard_of(Rank rank, std::uint64_t request) noexcept {
    guard_ = {rank, request};
    overdue_.reset();
  }
  /// Answers a guard, or only that of `rank`.
  void let_guard_go(std::optional<Rank> rank);
  [[nodiscard]] std::optional<std::string> const& broken() const noexcept { return broken_; }

  /// It is `rank`'s from now on: larger frames are accepted.
  void joined_as(wire::Join const& join);
  void break_off(std::string reason);
  /// Tells a rank why it is dropped, as far as that can be sent now. The last call.
  void say_why() noexcept;

  /// Reads once, into `buffer`. Frames come out of next_frame(). False when there was nothing to read.
  bool read(std::span<char> buffer);
  /// The next whole frame of the bytes that read() found.
  [[nodiscard]] std::optional<wire::Frame> next_frame();
  /// Called when next_frame() has no more: a frame that is incomplete now must be complete by `overdue`.
  void expect_rest_by(Clock::time_point overdue);
  /// When this connection is to be dropped: an incomplete frame, or no join. nullopt for never, and while the
  /// rest may be in the socket, unread.
  [[nodiscard]] std::optional<Clock::time_point> overdue() const noexcept {
    return paused_ || !drained_ ? std::nullopt : overdue_;
  }

  /// Sends, or keeps what cannot be sent now. Values are shared with other connections, not copied.
  void send(std::string bytes);
  void send(wire::Frame const& frame) { send(wire::encode(frame)); }
  void send(std::uint64_t request, std::vector<ControlStore::Value> const& values,
            wire::Type type = wire::Type::done);
  void flush();
  /// Whether the peer does not read its answers. Until it does, its requests stay in the socket.
  [[nodiscard]] bool paused() const noexcept { return paused_; }
  [[nodiscard]] bool wants_to_send() const noexcept { return !pieces_.empty(); }
  /// What epoll is told to watch; kept here so that it is told of changes only.
  std::uint32_t watched = 0;

 private:
  void keep(ControlStore::Value piece);

  PrivateDescriptor socket_;
  pid_t pid_;
  std::optional<wire::Join> who_;
  bool knows_secret_;
  std::optional<ControlStore::Ticket> guard_;  ///< of a guard that waits: its rank, and its request
  ControlTraffic& traffic_;
  std::optional<std::string> broken_;

  wire::Decoder decoder_{wire::kBeforeJoin};
  std::span<char const> unread_;
  std::optional<Clock::time_point> overdue_;
  bool drained_ = true;  ///< the last read() took all that was there

  std::deque<ControlStore::Value> pieces_;
  std::size_t sent_of_front_ = 0;
  std::size_t unsent_bytes_ = 0;
  bool paused_ = false;
  bool deaf_ = false;  ///< the peer reads no more
};

}  // namespace ddp
