#include "launcher/mpirun/mpi_daemon.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ddp/core/text.hpp"
#include "launcher/plan/first_line.hpp"

namespace ddp::launcher {
namespace {

/// The kernel sends again after 0.2 s, then waits twice as long each time: the eighth try is due after 51 s.
/// It gives up after the fifteenth, a quarter of an hour (tcp_retries2 in ip-sysctl.rst). While its own
/// interface is down it counts probes instead of tries. An answer resets both counts.
constexpr unsigned long kTriesInVain = 8;
constexpr char const* kEstablished = "01";

}  // namespace

bool is_mpi_daemon(pid_t pid) { return first_line_of_file(text("/proc/", pid, "/comm")) == "orted"; }

// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode (proc_net_tcp.rst)
std::set<std::string> unheard_sockets(std::istream& table) {
  std::set<std::string> inodes;
  for (std::string line; std::getline(table, line);) {
    Classic<std::istringstream> fields(line);
    std::string skipped;
    std::string state;
    unsigned long tries = 0;
    unsigned long probes = 0;
    std::string inode;
    fields >> skipped >> skipped >> skipped >> state >> skipped >> skipped >> std::hex >> tries >> std::dec >>
        skipped >> probes >> inode;
    if (!fields || state != kEstablished) continue;
    if (std::max(tries, probes) >= kTriesInVain) inodes.insert(inode);
  }
  return inodes;
}

bool is_unheard(pid_t pid) {
  std::set<std::string> unheard;
  for (char const* table : {"tcp", "tcp6"}) {
    Classic<std::ifstream> in(text("/proc/", pid, "/net/", table));
    unheard.merge(unheard_sockets(in));
  }
  if (unheard.empty()) return false;
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator(text("/proc/", pid, "/fd"), ignored)) {
    std::string const target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[") && unheard.contains(target.substr(8, target.size() - 9))) return true;
  }
  return false;
}

}  // namespace ddp::launcher
