#include "bootstrap/server/hosted_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "core/system/own_process.hpp"
#include "core/system/process_stat.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::chrono::seconds kBeforeALine{10};

// Those that rank 0 has left in this process. Never destroyed: it is used when the program's globals are torn
// down.
struct Servers {
  OwnProcess maker;
  std::mutex mutex;
  bool exiting = false;
  std::vector<std::shared_ptr<HostedServer>> left;
};

Servers& servers() {
  static auto* const all = new Servers;
  return *all;
}

// Each rank is a connection.
void allow_open_files(int ranks) {
  constexpr rlim_t kOthers = 256;  // of the program
  rlim_t const needed = static_cast<rlim_t>(ranks) + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == needed) return;
  log(LogLevel::warning, text("rank 0 serves ", ranks, " ranks, for which it needs ", needed,
                              " open files, and may have ", limit.rlim_cur, "; raise its limit (ulimit -n)"));
}

}  // namespace

std::shared_ptr<HostedServer> HostedServer::start(ControlServer::Options options, FileDescriptor network) {
  options.of_rank_0 = true;
  [[maybe_unused]] static int const at_exit = std::atexit(&HostedServer::finish_all);
  return {new HostedServer(std::move(options), std::move(network)), DeleteOwn{}};
}

void HostedServer::serve_to_the_end(std::shared_ptr<HostedServer> const& server) noexcept {
  try {
    std::lock_guard const lock(servers().mutex);
    if (!servers().exiting) return servers().left.push_back(server);
  } catch (std::exception const& error) {  // no memory: it is waited for now
    log(LogLevel::warning, error.what());
  }
  server->finish();
}

// At exit, before MPI ends: its handler was set earlier. The others serve on: a World that is a global object
// leaves later. If one never leaves, the end of the process closes the connections.
void HostedServer::finish_all() noexcept {
  if (!servers().maker.is_this()) return;
  std::vector<std::shared_ptr<HostedServer>> left;
  {
    std::lock_guard const lock(servers().mutex);
    servers().exiting = true;
    left.swap(servers().left);
  }
  for (auto const& server : left) server->finish();
}

HostedServer::HostedServer(ControlServer::Options options, FileDescriptor network)
    : size_(options.size), server_(std::move(options), std::move(network)), wake_(::eventfd(0, EFD_CLOEXEC)) {
  if (!wake_) throw_errno("making the control server's event", errno);
  allow_open_files(size_);
  for (Rank const rank : all_ranks(size_)) present_[rank] = 0;
  thread_ = start_thread_without_signals([this] { serve(); });
}

HostedServer::~HostedServer() { stop(); }

void HostedServer::stop() noexcept {
  stop_ = true;
  std::uint64_t const one = 1;
  [[maybe_unused]] auto const written = ::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void HostedServer::serve() noexcept {
  while (!stop_) {
    std::array<pollfd, 2> waits{{{server_.poll_fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    ::poll(waits.data(), waits.size(), -1);
    try {
      for (ControlServer::Event const& event : server_.process()) take(event);
    } catch (std::exception const& error) {  // of one message: the others go on
      log(LogLevel::error, text("control server of rank 0: ", error.what()));
    }
  }
  say_traffic();
}

void HostedServer::say_traffic() const noexcept {
  try {
    ControlTraffic const& traffic = server_.traffic();
    log(LogLevel::info,
        text("the control plane of ", size_, " ranks got ", traffic.frames_in, " messages (",
             traffic.bytes_in, " bytes) and sent ", traffic.frames_out, " (", traffic.bytes_out, " bytes)"));
  } catch (std::exception const&) {  // no memory for a line
  }
}

void HostedServer::take(ControlServer::Event const& event) {
  using Kind = ControlServer::Event::Kind;
  if (event.kind == Kind::joined) {
    std::lock_guard const lock(mutex_);
    if (present_.contains(event.rank)) present_[event.rank] = event.pid;
  }
  if (event.kind == Kind::disconnected) {
    server_.declare_lost(process_has_ended(event.rank, event.process, event.host));
  }
  if (event.kind == Kind::late) {
    log(LogLevel::warning,
        text("rank ", event.rank,
             " did not come to the others' World::rebuild() in time: "
             "they go on without it. Its process, ",
             event.process, " on ", event.host, ", is not killed; if it goes on, it is refused and ends"));
  }
  if (event.kind == Kind::disconnected || event.kind == Kind::left || event.kind == Kind::late) {
    std::lock_guard const lock(mutex_);
    present_.erase(event.rank);
    changed_.notify_all();
  }
}

void HostedServer::finish() noexcept {
  try {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kBeforeALine, [this] { return present_.empty(); })) {
      std::string stopped;
      std::vector<Rank> ranks;
      for (auto const& [rank, pid] : present_) {
        ranks.push_back(rank);
        if (pid != 0) stopped += describe_stopped(rank, pid);
      }
      log(stopped.empty() ? LogLevel::info : LogLevel::warning,
          text("rank 0 has left and waits for ranks that have not: ", join(ranks, ", "), stopped));
    }
  } catch (std::exception const& error) {
    log(LogLevel::warning, error.what());
  }
  stop();
}

}  // namespace ddp
