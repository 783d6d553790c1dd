// The control server of a job that ddp-launch does not serve: a thread of rank 0.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "bootstrap/server/control_server.hpp"

namespace ddp {

/// A rank whose connection closes before it has left is lost. Serves until its owner lets it go; after
/// serve_to_the_end() until every rank has left or is lost, for which this process's exit waits.
class HostedServer {
 public:
  /// As ControlServer.
  [[nodiscard]] static std::shared_ptr<HostedServer> start(ControlServer::Options options,
                                                           FileDescriptor network = {});
  ~HostedServer();
  HostedServer(HostedServer const&) = delete;
  HostedServer& operator=(HostedServer const&) = delete;

  /// Where ranks of this host connect.
  [[nodiscard]] std::string const& path() const noexcept { return server_.path(); }
  /// Rank 0 has left. If the process exits already (the World is a global object), returns when every rank
  /// has left or is lost.
  static void serve_to_the_end(std::shared_ptr<HostedServer> const& server) noexcept;

 private:
  HostedServer(ControlServer::Options options, FileDescriptor network);
  void serve() noexcept;
  void say_traffic() const noexcept;
  void take(ControlServer::Event const& event);
  /// Returns when every rank has left or is lost. Like MPI_Finalize it has no deadline: ranks may work on as
  /// long as they like. The log names them.
  void finish() noexcept;
  void stop() noexcept;
  static void finish_all() noexcept;

  int size_;
  ControlServer server_;  // the thread's
  FileDescriptor wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Rank, pid_t> present_;  // 0: not known
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ddp
