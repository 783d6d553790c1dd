// How long a job of many ranks takes to start over one control server, and what that costs in bytes:
//   DDP_LOG=info start_many_ranks [RANKS [HOSTS]]     1024 ranks, 8 hosts unless told
// The clients are real, in one process for each host; as root each has a host name of its own, so that ranks
// take them for hosts. Each rank joins rank 0 by address, tells the first one where it is, hears from that
// how the group communicates, and says six times what all ranks say, as they do where they compare models and
// options; then it leaves. Rank 0's server says how many messages and bytes that were.
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/text.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kComparisons = 6;
constexpr std::size_t kCompared = 64;  // bytes: a hash and a name
constexpr std::size_t kPlace = 400;    // of a GPU rank on a host of 64 CPUs

int free_port() {
  int const probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bool const bound = ::bind(probe, reinterpret_cast<sockaddr const*>(&address), length) == 0 &&
                     ::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(probe);
  if (!bound) ddp::throw_errno("looking for a free port", errno);
  return ntohs(address.sin_port);
}

void start_and_leave(ddp::RankInfo const& info) {
  using namespace std::chrono_literals;
  auto const control = ddp::connect_control_plane(info, ddp::Deadline::after(120s));
  auto const ranks = control->everyone();
  auto const deadline = [] { return ddp::Deadline::after(120s); };
  std::string const place = ddp::text(std::string(kPlace, 'p'), info.rank);
  static_cast<void>(control->gather("location", place, ranks, deadline()));
  std::string const conclusion(info.rank == ddp::Rank{0} ? kCompared : 0, 'c');
  static_cast<void>(control->all_gather("conclusion", conclusion, ranks, deadline()));
  std::string const same(kCompared, 'x');
  for (int i = 0; i < kComparisons; ++i) {
    auto const said = control->all_gather(ddp::text("compare ", i), same, ranks, deadline());
    if (said.back() != same) throw ddp::Error(ddp::ErrorCode::protocol, "a rank said something else");
  }
  control->leave();
}

// The ranks of one host; returns how many failed.
int run_host(int host, int ranks, int hosts, int port) {
  std::string const name = ddp::text("bench-node", host);
  if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) != 0) {
    if (host == 0) std::cout << "all ranks on one host: naming others needs root\n";
  }
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int rank = host * ranks / hosts; rank < (host + 1) * ranks / hosts; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ddp::RankInfo info;
        info.rank = ddp::Rank{rank};
        info.size = ranks;
        info.source = ddp::RankSource::address;
        info.address = "127.0.0.1";
        info.port = port;
        info.local_known = false;
        start_and_leave(info);
      } catch (std::exception const& error) {
        ++failed;
        std::cerr << ddp::text("rank ", rank, ": ", error.what(), '\n');
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  int const ranks = argc > 1 ? std::atoi(argv[1]) : 1024;
  int const hosts = argc > 2 ? std::atoi(argv[2]) : 8;
  if (ranks < 2 || hosts < 1 || hosts > ranks) {
    std::cerr
        << "expected: start_many_ranks [RANKS [HOSTS]], with at least 2 ranks and a rank for each host\n";
    return 64;
  }
  int const port = free_port();
  auto const begin = Clock::now();
  for (int host = 0; host < hosts; ++host) {
    if (::fork() == 0) std::exit(run_host(host, ranks, hosts, port) == 0 ? 0 : 1);
  }
  bool good = true;
  for (int status = 0; ::wait(&status) > 0;) good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  double const took = std::chrono::duration<double>(Clock::now() - begin).count();
  std::cout << ranks << " ranks of " << hosts << " hosts, from the first fork to the last exit: " << took
            << " s\n";
  return good ? 0 : 1;
}
