// Control planes of a whole job inside one test process, by either way to reach a rendezvous.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/in_process/control.hpp"
#include "bootstrap/server/control_server.hpp"
#include "core/system/file_descriptor.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {

/// A ControlServer with a thread that serves it, as ddp-launch's event loop does.
class ServerThread {
 public:
  explicit ServerThread(ControlServer::Options options, FileDescriptor network = {})
      : server_(std::make_unique<ControlServer>(std::move(options), std::move(network))),
        path_(server_->path()),
        wake_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { serve(); }) {}
  ~ServerThread() { stop(); }

  [[nodiscard]] std::string const& path() const { return path_; }

  /// Runs `action` in the server's thread.
  void post(std::function<void(ControlServer&)> action) {
    {
      std::lock_guard const lock(mutex_);
      actions_.push_back(std::move(action));
    }
    wake();
  }
  void declare_lost(Failure lost) {
    post([lost = std::move(lost)](ControlServer& server) { server.declare_lost(lost); });
  }

  /// Ends the server as a killed launcher would: connections close, nothing is said.
  void stop() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard const lock(mutex_);
      stopped_ = true;
    }
    wake();
    thread_.join();
    server_.reset();
  }

  [[nodiscard]] std::vector<ControlServer::Event> events() const {
    std::lock_guard const lock(mutex_);
    return events_;
  }
  /// Waits until an event of this kind and rank has happened; false after 10 s.
  [[nodiscard]] bool saw(ControlServer::Event::Kind kind, Rank rank) const {
    return find(kind, rank).has_value();
  }
  [[nodiscard]] std::optional<ControlServer::Event> find(ControlServer::Event::Kind kind, Rank rank) const {
    std::unique_lock lock(mutex_);
    std::optional<ControlServer::Event> found;
    happened_.wait_for(lock, std::chrono::seconds(10), [&] {
      for (auto const& event : events_) {
        if (event.kind == kind && event.rank == rank) found = event;
      }
      return found.has_value();
    });
    return found;
  }

 private:
  void wake() {
    std::uint64_t const one = 1;
    ASSERT_EQ(::write(wake_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  void serve() {
    for (;;) {
      pollfd entries[] = {{server_->poll_fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      ::poll(entries, 2, -1);
      if (entries[1].revents != 0) {
        std::uint64_t count = 0;
        ASSERT_EQ(::read(wake_.get(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
      }
      std::vector<std::function<void(ControlServer&)>> actions;
      {
        std::lock_guard const lock(mutex_);
        if (stopped_) return;
        actions.swap(actions_);
      }
      for (auto const& action : actions) action(*server_);
      auto events = server_->process();
      std::lock_guard const lock(mutex_);
      events_.insert(events_.end(), events.begin(), events.end());
      happened_.notify_all();
    }
  }

  std::unique_ptr<ControlServer> server_;
  std::string path_;
  FileDescriptor wake_;
  mutable std::mutex mutex_;
  mutable std::condition_variable happened_;
  std::vector<std::function<void(ControlServer&)>> actions_;
  std::vector<ControlServer::Event> events_;
  bool stopped_ = false;
  std::thread thread_;
};

inline RankInfo launched(std::string const& control, int rank, int size) {
  RankInfo info;
  info.source = RankSource::launcher;
  info.rank = Rank{rank};
  info.local_rank = LocalRank{rank};
  info.size = info.local_size = size;
  info.control = control;
  return info;
}

/// All ranks of one job.
class ControlJob {
 public:
  virtual ~ControlJob() = default;
  virtual void declare_lost(Failure lost) = 0;
  /// A new process of that rank, which was lost, joins.
  virtual void replace(int r) = 0;
  [[nodiscard]] ControlPlane& rank(int r) { return *planes.at(static_cast<std::size_t>(r)); }

  std::vector<std::shared_ptr<ControlPlane>> planes;
};

class InProcessControlJob final : public ControlJob {
 public:
  explicit InProcessControlJob(int size, int min_ranks = 0)
      : job_(std::make_shared<InProcessJob>(size, min_ranks)) {
    planes = job_->control_planes();
  }
  void declare_lost(Failure lost) override { job_->declare_lost(lost); }
  void replace(int r) override { planes.at(static_cast<std::size_t>(r)) = job_->newcomer(Rank{r}, 1); }

 private:
  std::shared_ptr<InProcessJob> job_;
};

class LaunchedControlJob final : public ControlJob {
 public:
  explicit LaunchedControlJob(int size, int min_ranks = 0)
      : server(ControlServer::Options{.size = size, .min_ranks = min_ranks}) {
    for (int r = 0; r < size; ++r) {
      planes.push_back(
          connect_control_plane(launched(server.path(), r, size), Deadline::after(std::chrono::seconds(10))));
    }
  }
  ~LaunchedControlJob() override { planes.clear(); }
  void declare_lost(Failure lost) override { server.declare_lost(std::move(lost)); }
  void replace(int r) override {
    std::promise<void> expected;
    server.post([&](ControlServer& here) {
      here.let_come_back(Rank{r});
      expected.set_value();
    });
    expected.get_future().wait();
    RankInfo info = launched(server.path(), r, static_cast<int>(planes.size()));
    info.replacement = 1;
    planes.at(static_cast<std::size_t>(r)) =
        connect_control_plane(info, Deadline::after(std::chrono::seconds(10)));
  }

  ServerThread server;
};

}  // namespace ddp::testing
