#include "launcher/mpi_shim.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "launcher/exit_code.hpp"
#include "launcher/guard.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kWordsBeforeProgram = 3;  // kind, master, file
constexpr Deadline::Duration kTimeToEnd{1900};

FileDescriptor open_pidfd(pid_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

/// The guard: waits for the end of `parent` or of `rank`, then ends the rank's process group.
[[noreturn]] void keep_rank_guard(FileDescriptor const& parent, FileDescriptor const& rank, pid_t group) {
  setsid();
  name_guard_process();
  // Descriptors 0 and 1 become the two; nothing of the rank's stays open.
  std::array<int, 2> kept{dup(parent.get()), dup(rank.get())};
  for (int i = 0; i < 2; ++i) dup2(kept[static_cast<std::size_t>(i)], i);
  close_range(2, ~0U, 0);
  std::array<pollfd, 2> ends{pollfd{0, POLLIN, 0}, pollfd{1, POLLIN, 0}};
  while (poll(ends.data(), ends.size(), -1) < 0 && errno == EINTR) {
  }
  Deadline const deadline = Deadline::after(kTimeToEnd);
  while (kill(-group, SIGKILL) == 0 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(10));
  _exit(0);
}

/// Twice forked, so that the program finds no child that it did not start.
void start_rank_guard() {
  if (getpgrp() != getpid()) setpgid(0, 0);
  pid_t const group = getpid();
  pid_t const parent_pid = getppid();
  FileDescriptor const parent = open_pidfd(parent_pid);
  FileDescriptor const rank = open_pidfd(getpid());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid) _exit(exit_code::kSignalBase + SIGKILL);  // it is gone already
  if (!parent || !rank) return;
  pid_t const child = fork();
  if (child < 0) {
    throw ExitError(exit_code::kRetry, text("cannot start the guard process: fork: ", std::strerror(errno)));
  }
  if (child == 0) {
    if (fork() == 0) keep_rank_guard(parent, rank, group);
    _exit(0);
  }
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::vector<std::string> shim_command(std::string const& launcher, bool cpu_ranks, std::string const& master,
                                      std::string const& program) {
  return {launcher, kShim, cpu_ranks ? "cpu" : "gpu", master, program};
}

Variables shim_environment(std::function<std::optional<std::string>(std::string const&)> const& lookup,
                           bool cpu_ranks, std::string const& master) {
  auto const needed = [&](std::string const& name) {
    auto const value = lookup(name);
    if (!value) {
      throw ExitError(exit_code::kUsage, text(kShim, " is what ddp-launch starts through mpirun, which sets ",
                                              name, "; it is not for the command line"));
    }
    return *value;
  };
  std::string const rank = needed("OMPI_COMM_WORLD_RANK");
  std::string const size = needed("OMPI_COMM_WORLD_SIZE");
  std::string const local_rank = needed("OMPI_COMM_WORLD_LOCAL_RANK");
  std::string const local_size = needed("OMPI_COMM_WORLD_LOCAL_SIZE");
  int const per_host = std::max(1, std::atoi(local_size.c_str()));
  std::string const job = lookup("DDP_JOB_ID").value_or("");
  Variables variables{{"RANK", rank},
                      {"WORLD_SIZE", size},
                      {"LOCAL_RANK", local_rank},
                      {"LOCAL_WORLD_SIZE", local_size},
                      {"GROUP_RANK", std::to_string(std::atoi(rank.c_str()) / per_host)},
                      {"GROUP_WORLD_SIZE", std::to_string(std::max(1, std::atoi(size.c_str()) / per_host))},
                      {"MASTER_ADDR", master},
                      {"MASTER_PORT", lookup("MASTER_PORT").value_or("29500")},
                      {"TORCHELASTIC_RUN_ID", job},
                      {"TORCHELASTIC_RESTART_COUNT", "0"},
                      {"TORCHELASTIC_MAX_RESTARTS", "0"},
                      {"DDP_GENERATION", "0"}};
  if (auto const directory = lookup(kErrorDirectory); directory && access(directory->c_str(), W_OK) == 0) {
    variables.emplace_back("DDP_ERROR_FILE",
                           error_file({.control = {}, .error_dir = *directory, .master_port = {}},
                                      Rank{std::atoi(rank.c_str())}));
  }
  if (cpu_ranks) variables.emplace_back("CUDA_VISIBLE_DEVICES", "");
  return variables;
}

int run_shim(std::vector<std::string> const& words) {
  bool marked = words.size() > kWordsBeforeProgram;
  for (std::size_t i = kWordsBeforeProgram; i < words.size(); ++i) {
    marked = marked && words[i].starts_with(kArgumentMark);
  }
  if (!marked) {
    throw ExitError(exit_code::kUsage, text(kShim, " is not for the command line"));
  }
  auto const lookup = [](std::string const& name) -> std::optional<std::string> {
    char const* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  for (auto const& [name, value] : shim_environment(lookup, words[0] == "cpu", words[1])) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  unsetenv("DDP_CONTROL");
  unsetenv(kErrorDirectory);
  start_rank_guard();
  std::vector<char*> arguments;
  for (std::size_t i = kWordsBeforeProgram; i < words.size(); ++i) {
    arguments.push_back(const_cast<char*>(words[i].c_str()) + 1);  // behind kArgumentMark
  }
  arguments.push_back(nullptr);
  execv(words[2].c_str(), arguments.data());
  int const problem = errno;
  std::fprintf(stderr, "ddp-launch: %s could not be started: %s\n", words[2].c_str(), std::strerror(problem));
  return exec_failure_code(problem);
}

}  // namespace ddp::launcher
