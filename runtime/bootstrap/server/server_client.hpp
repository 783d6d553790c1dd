// The control plane of a rank: a client of its job's ControlServer.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/control_client.hpp"
#include "bootstrap/notices.hpp"
#include "bootstrap/pending_requests.hpp"
#include "bootstrap/wire.hpp"
#include "core/pausing_deadline.hpp"
#include "core/system/private_descriptor.hpp"
#include "ddp/bootstrap/rank_info.hpp"

namespace ddp {

/// One connection and one thread that reads it, so that answers and failure notices arrive without polling.
/// When the connection closes, every wait fails at once: the server is gone.
class ServerClient : public ControlClient {
 public:
  /// Where the server is, in messages and in lost().
  struct Server {
    std::string name;          ///< "ddp-launch", "rank 0 on node1"
    std::string place;         ///< where it listens
    std::optional<Rank> rank;  ///< whose process it is part of; nullopt: of ddp-launch
  };

  /// Joins ddp-launch's job, at info.control. Throws CommError(timeout), Error(io), and Error(protocol) or
  /// Error(invalid_state) when the server refuses this rank.
  ServerClient(RankInfo const& info, Deadline deadline);
  /// Joins over a connection to `server`. Throws likewise.
  ServerClient(RankInfo const& info, FileDescriptor socket, Server server, Deadline deadline);
  ~ServerClient() override;
  ServerClient(ServerClient const&) = delete;
  ServerClient& operator=(ServerClient const&) = delete;

  [[nodiscard]] std::vector<Failure> lost() const override;
  [[nodiscard]] std::optional<Failure> interruption() const override;
  void report_error(Failure const& failure) noexcept override;
  void leave() noexcept override;
  void notify(std::span<Rank const> to, std::string_view name, std::string_view bytes) override;
  [[nodiscard]] std::shared_ptr<void> listen(std::string_view name, Listener const& listener) override {
    return notices_.listen(name, listener);
  }

 protected:
  /// Whether the server did not answer in time, and nothing came from it since.
  [[nodiscard]] bool is_silent() const noexcept { return silent_; }
  [[nodiscard]] Outcome ask(wire::Frame request, Deadline deadline) override;

 private:
  using Waiter = PendingRequests<Outcome>::Waiter;

  void join(int generation, Deadline deadline);
  void add_lost(Failure lost);
  [[nodiscard]] Failure is_gone() const;
  [[nodiscard]] Failure silence() const;
  void read_until_closed() noexcept;
  void stop_reading() noexcept;
  void handle(wire::Frame const& frame);
  void begin(std::string_view membership);
  /// No request can be answered any more. The first reason stays.
  void close_with(Failure failure) { pending_.close({std::move(failure), {}}); }
  /// One thread sends at a time. Returns a failure if not all was sent by the deadline.
  [[nodiscard]] std::optional<Failure> send(wire::Frame const& frame, Deadline deadline);
  /// Called by the one thread that sends. Removes what was sent from the front of `bytes`, even if it fails.
  [[nodiscard]] std::optional<Failure> send_in_turn(std::string_view& bytes, PausingDeadline& timeout);

  Server const server_;
  std::string const error_file_;
  PrivateDescriptor socket_;

  std::mutex send_mutex_;
  std::condition_variable send_free_;
  bool sending_ = false;

  PendingRequests<Outcome> pending_;
  std::atomic<bool> silent_{false};  ///< it did not answer in time, and nothing came since
  mutable std::mutex mutex_;
  std::string server_host_;  ///< the server's, as are the next, when this rank has joined
  pid_t server_process_ = 0;
  std::vector<Failure> lost_;
  std::atomic<bool> is_interrupted_{false};  ///< asked in every step, so without the mutex
  std::optional<Failure> interruption_;      ///< of the present membership
  bool has_left_ = false;
  Notices notices_;
  std::thread reader_;
};

}  // namespace ddp
