// The server's side of MpiControl: a thread of rank 0.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/control_store.hpp"
#include "bootstrap/mpi/lifelines.hpp"
#include "bootstrap/mpi/messages.hpp"
#include "bootstrap/wire.hpp"

namespace ddp {

/// Serves put, get, all_gather and notices of lost ranks to all ranks of an MPI job, its own included, with
/// the frames of ddp-launch's server as messages. It looks for messages every few milliseconds while nobody
/// asks anything.
class MpiServer {
 public:
  static constexpr int kRequestTag = 1;
  static constexpr int kNewsTag = 2;
  static constexpr int kLetterTag = 3;  ///< from rank to rank, past the server
  /// The tag of the answer to `request`: several threads of a rank may wait at once.
  [[nodiscard]] static constexpr int answer_tag(std::uint64_t request) noexcept {
    return 16 + static_cast<int>(request % 16384);
  }

  MpiServer(std::shared_ptr<mpi::Messages> messages, int size);
  ~MpiServer();
  MpiServer(MpiServer const&) = delete;
  MpiServer& operator=(MpiServer const&) = delete;

  /// From now on takes in ranks of other hosts, and tells of those that end. Any thread.
  void watch(std::unique_ptr<Lifelines> lifelines) noexcept;
  /// Process numbers of ranks of this host: finish() says which are stopped. Called once, before it.
  void know(std::vector<std::pair<Rank, pid_t>> processes) noexcept;
  /// Returns when every rank has left or died, and all messages to them have been sent. Like MPI_Finalize,
  /// which follows, it has no deadline: ranks may work on as long as they like. The log names these.
  void finish() noexcept;
  /// Ends the thread now.
  void stop() noexcept;

 private:
  void serve() noexcept;
  [[nodiscard]] bool handle_next();
  void handle(Rank from, wire::Frame frame);
  void deliver(ControlStore::Answers const& answers);
  void send(Rank to, int tag, wire::Frame const& frame) noexcept;
  /// How much a job of this size costs: what docs/cluster.md calculates with.
  void say_traffic() const noexcept;
  void look_for_ended_ranks();
  void lose(Failure const& lost);
  /// Sends notices of lost ranks to all ranks that have not left.
  void spread_news();
  [[nodiscard]] bool all_are_gone();

  struct Traffic {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    void add(std::size_t length) noexcept {
      ++messages;
      bytes += length;
    }
  };

  std::shared_ptr<mpi::Messages> messages_;
  ControlStore store_;  // the thread's, as are these
  std::vector<Failure> news_;
  std::chrono::steady_clock::time_point oldest_news_;
  Traffic received_;
  Traffic sent_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> present_;
  std::vector<std::pair<Rank, pid_t>> processes_;
  std::unique_ptr<Lifelines> lifelines_;  // set once; then the thread's
  bool ended_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ddp
