#include "launcher/mpirun/mpi_rank_guard.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <sstream>
#include <string>
#include <thread>

#include "core/system/pidfd.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_daemon.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/guard.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooksAtParent{5000};

// Waits on although signals interrupt poll().
void wait_for_any(std::span<pollfd> ends, milliseconds timeout) {
  Deadline const deadline = Deadline::after(timeout);
  while (poll(ends.data(), ends.size(), static_cast<int>(deadline.remaining().count())) < 0 &&
         errno == EINTR) {
  }
}

/// Waits for the end of the daemon, and kills a daemon that the network has cut off: it would try for a
/// quarter of an hour to report that its rank has ended.
void end_unheard_daemon(pid_t daemon, std::span<pollfd> end) {
  while (end[0].revents == 0) {
    wait_for_any(end, kBetweenLooksAtParent);
    if (end[0].revents != 0 || !is_unheard(daemon)) continue;
    kill(daemon, SIGKILL);
    wait_for_any(end, kTimeToEnd);
  }
}

/// Removes what a killed daemon has left; a daemon that ended in order has left nothing.
void remove_files(std::filesystem::path const& folder) {
  std::error_code ignored;
  if (folder.empty()) return;
  std::filesystem::remove_all(folder, ignored);
  std::filesystem::remove(folder.parent_path(), ignored);  // if it is empty
}

/// ".0.75a0001.3" of "vader_segment.node7.0.75a0001.3": Open MPI's shared-memory transport makes that file in
/// /dev/shm for local rank 3, and a killed daemon leaves it there. Empty outside of mpirun.
std::string end_of_segment(RankPlace const& place) {
  char const* const job = std::getenv("PMIX_NAMESPACE");
  unsigned long number = 0;
  Classic<std::istringstream>(job != nullptr ? job : "") >> number;
  if (number == 0) return {};
  Classic<std::ostringstream> end;
  end << '.' << geteuid() << '.' << std::hex << number << std::dec << '.' << place.local_rank;
  return std::move(end).str();
}

void remove_segment(std::string const& end) {
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    std::string const name = entry.path().filename().string();
    if (!end.empty() && name.starts_with("vader_segment.") && name.ends_with(end)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

/// The guard: waits for the end of `parent` or of `rank`, then ends the rank's process group.
[[noreturn]] void keep_rank_guard(FileDescriptor const& parent, FileDescriptor const& rank, pid_t group,
                                  pid_t daemon, std::filesystem::path const& files_of_daemon,
                                  std::string const& segment) {
  setsid();
  name_guard_process();
  // Descriptors 0 and 1 become `parent` and `rank`; no descriptor of the rank stays open.
  std::array<int, 2> kept{dup(parent.get()), dup(rank.get())};
  for (int i = 0; i < 2; ++i) dup2(kept[static_cast<std::size_t>(i)], i);
  close_range(2, ~0U, 0);
  std::array<pollfd, 2> ends{pollfd{0, POLLIN, 0}, pollfd{1, POLLIN, 0}};
  while (ends[0].revents == 0 && ends[1].revents == 0) wait_for_any(ends, kBetweenLooksAtParent);
  Deadline const deadline = Deadline::after(kTimeToEnd);
  while (kill(-group, SIGKILL) == 0 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(10));
  remove_segment(segment);
  std::span<pollfd> const end_of_parent = std::span(ends).first(1);
  if (is_mpi_daemon(daemon)) end_unheard_daemon(daemon, end_of_parent);
  wait_for_any(end_of_parent, milliseconds(0));  // the parent may have ended right after its rank
  if (ends[0].revents != 0) remove_files(files_of_daemon);
  _exit(0);
}

/// The daemon's files, by a variable that mpirun gives its ranks; empty if its form is unexpected.
std::filesystem::path files_of_daemon() {
  char const* const folder = std::getenv("PMIX_SERVER_TMPDIR");
  std::filesystem::path const path(folder != nullptr ? folder : "");
  bool const expected = path.is_absolute() && path.filename().string().starts_with("jf.") &&
                        path.parent_path().filename().string().starts_with("ompi.");
  return expected ? path : std::filesystem::path{};
}

}  // namespace

// Forks twice, so that the program finds no child that it did not start.
void start_mpi_rank_guard(RankPlace const& place) {
  if (getpgrp() != getpid()) setpgid(0, 0);
  std::string const segment = end_of_segment(place);
  pid_t const group = getpid();
  pid_t const parent_pid = getppid();
  FileDescriptor const parent = open_pidfd(parent_pid);
  FileDescriptor const rank = open_pidfd(getpid());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid) _exit(exit_code::kSignalBase + SIGKILL);  // the parent is gone already
  if (!parent || !rank) return;
  pid_t const child = fork_guard();
  if (child == 0) {
    if (fork() == 0) keep_rank_guard(parent, rank, group, parent_pid, files_of_daemon(), segment);
    _exit(0);
  }
  await_child(child);
}

}  // namespace ddp::launcher
