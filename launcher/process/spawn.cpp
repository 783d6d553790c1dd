#include "launcher/process/spawn.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/system/pidfd.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/cores.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/job_control.hpp"

namespace ddp::launcher {
namespace {

/// Runs in the child and never returns. System calls only.
[[noreturn]] void become_rank(SpawnRequest const& request, pid_t launcher, char* const* arguments,
                              char* const* environment, std::vector<unsigned long> const& cpus) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(exit_code::kSignalBase + SIGKILL);  // the launcher died before prctl()
  pid_t const self = getpid();
  bool const guarded = write(request.guard_fd, &self, sizeof self) == static_cast<ssize_t>(sizeof self);
  if (!guarded && errno != EPIPE) _exit(exit_code::kRetry);  // EPIPE: somebody killed the guard
  stay_on(cpus);
  setrlimit(RLIMIT_NOFILE, &request.open_files);
  bool const connected = dup2(request.stdin_fd, STDIN_FILENO) >= 0 &&
                         dup2(request.stdout_fd, STDOUT_FILENO) >= 0 &&
                         dup2(request.stderr_fd, STDERR_FILENO) >= 0;
  reset_signals();
  if (connected) execve(request.program.c_str(), arguments, environment);
  ExecFailure const failure{request.rank.value(), errno};
  [[maybe_unused]] auto const written = write(request.failure_fd, &failure, sizeof failure);
  _exit(exec_failure_code(failure.error_number));
}

}  // namespace

std::vector<char*> pointers(std::vector<std::string> const& words) {
  std::vector<char*> result;
  for (std::string const& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

Pipe make_pipe() {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw ExitError(exit_code::kRetry, text("cannot make a pipe: ", std::strerror(errno)));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Child spawn(SpawnRequest const& request) {
  auto const arguments = pointers(request.arguments);
  auto const environment = pointers(request.environment);
  auto const cpus = cpu_mask(request.cpus);
  pid_t const launcher = getpid();
  pid_t const pid = fork();
  if (pid == 0) become_rank(request, launcher, arguments.data(), environment.data(), cpus);
  if (pid < 0) {
    throw ExitError(exit_code::kRetry,
                    text("cannot start rank ", request.rank, ": fork: ", std::strerror(errno)));
  }
  FileDescriptor pidfd = open_pidfd(pid);
  if (!pidfd) {
    int const problem = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    bool const exhausted = problem == EMFILE || problem == ENFILE || problem == ENOMEM;
    throw ExitError(exhausted ? exit_code::kRetry : exit_code::kInternal,
                    text("cannot watch rank ", request.rank, ": pidfd_open: ", std::strerror(problem),
                         problem == ENOSYS ? " (Linux 5.3 or newer is needed)" : ""));
  }
  return {pid, std::move(pidfd)};
}

void signal_group(Child const& child, int signal) {
  if (kill(-child.pid, signal) == 0 || errno != ESRCH) return;
  syscall(SYS_pidfd_send_signal, child.pidfd.get(), signal, nullptr, 0);
}

}  // namespace ddp::launcher
