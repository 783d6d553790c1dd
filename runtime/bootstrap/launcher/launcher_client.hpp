// The control plane of a rank that ddp-launch started: a client of its ControlServer.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/control_client.hpp"
#include "bootstrap/pending_requests.hpp"
#include "bootstrap/wire.hpp"
#include "core/pausing_deadline.hpp"
#include "core/system/file_descriptor.hpp"
#include "ddp/bootstrap/rank_info.hpp"

namespace ddp {

/// One connection and one thread that reads it, so that answers and notices of lost ranks arrive without
/// polling. When the connection closes, every wait fails at once: ddp-launch is gone.
class LauncherClient final : public ControlClient {
 public:
  /// Connects to info.control and joins. Throws CommError(timeout), Error(io), and Error(protocol) or
  /// Error(invalid_state) when the server refuses this rank.
  LauncherClient(RankInfo const& info, Deadline deadline);
  ~LauncherClient() override;
  LauncherClient(LauncherClient const&) = delete;
  LauncherClient& operator=(LauncherClient const&) = delete;

  [[nodiscard]] std::vector<Failure> lost() const override;
  void report_error(Failure const& failure) noexcept override;
  void report_progress(Progress const& progress) noexcept override;
  void leave() noexcept override;

 protected:
  [[nodiscard]] Outcome ask(Request const& request, Deadline deadline) override;

 private:
  using Waiter = PendingRequests<Outcome>::Waiter;

  void join(Deadline deadline);
  void read_until_closed() noexcept;
  void stop_reading() noexcept;
  void handle(wire::Frame const& frame);
  /// No request can be answered any more. The first reason stays.
  void close_with(Failure failure) { pending_.close({std::move(failure), {}}); }
  /// One thread sends at a time. Returns a failure if not all was sent by the deadline.
  [[nodiscard]] std::optional<Failure> send(wire::Frame const& frame, Deadline deadline);
  /// Called by the one thread that sends. Removes what was sent from the front of `bytes`, even if it fails.
  [[nodiscard]] std::optional<Failure> send_in_turn(std::string_view& bytes, PausingDeadline& timeout);

  std::string const path_;
  std::string const error_file_;
  FileDescriptor socket_;

  std::mutex send_mutex_;
  std::condition_variable send_free_;
  bool sending_ = false;

  PendingRequests<Outcome> pending_;
  mutable std::mutex mutex_;
  std::vector<Failure> lost_;
  std::thread reader_;
};

}  // namespace ddp
