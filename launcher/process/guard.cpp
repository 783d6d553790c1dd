#include "launcher/process/guard.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "core/system/process_stat.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/process/process_tree.hpp"
#include "launcher/process/spawn.hpp"

namespace ddp::launcher {
namespace {

/// Closes everything but `kept`: the guard must not keep a pipe or a terminal of the launcher's open.
void close_all_but(int kept) {
  bool const below = kept == 0 || close_range(0, static_cast<unsigned>(kept) - 1, 0) == 0;
  if (below && close_range(static_cast<unsigned>(kept) + 1, ~0U, 0) == 0) return;
  for (int fd = 0; fd < 4096; ++fd) {  // a kernel before 5.9
    if (fd != kept) close(fd);
  }
}

void apply(std::vector<pid_t>& ranks, pid_t number) {
  if (number > 0) {
    ranks.push_back(number);
  } else {
    std::erase(ranks, -number);
  }
}

// The kernel says where the words of the command line lie (proc(5), stat, fields 48 and 49).
void rename_command_line(std::string_view name) {
  Classic<std::istringstream> fields(process_stat(getpid()));
  constexpr int kFieldsBetween = 45;  // from field 3 on
  std::string skipped;
  for (int i = 0; i < kFieldsBetween; ++i) fields >> skipped;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  if (!(fields >> begin >> end) || begin == 0 || end <= begin) return;
  auto* const words = reinterpret_cast<char*>(begin);  // NOLINT(performance-no-int-to-ptr)
  std::memset(words, 0, end - begin);
  std::memcpy(words, name.data(), std::min(name.size(), end - begin - 1));
}

// Whatever signals come.
void await_child(pid_t child) noexcept {
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

[[noreturn]] void keep_guard(int pipe, std::string const& directory) {
  setsid();  // a signal to the launcher's process group is not for the guard
  name_guard_process();
  close_all_but(pipe);
  std::vector<pid_t> ranks;
  for (;;) {
    pid_t number = 0;
    ssize_t const count = ::read(pipe, &number, sizeof number);
    if (count == sizeof number) {
      apply(ranks, number);
    } else if (count == 0 || errno != EINTR) {
      break;  // the launcher is gone
    }
  }
  end_sessions(ranks);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  _exit(0);
}

}  // namespace

pid_t fork_guard() {
  pid_t const child = fork();
  if (child < 0) {
    throw ExitError(exit_code::kRetry, text("cannot start the guard process: fork: ", std::strerror(errno)));
  }
  return child;
}

void name_guard_process() {
  prctl(PR_SET_NAME, kGuardName);
  rename_command_line(kGuardName);
  std::signal(SIGPIPE, SIG_IGN);
  for (int const signal : kJobSignals) std::signal(signal, SIG_IGN);
  // A guard that somebody stops goes on within a second; otherwise it could outlive its job. The signal has a
  // handler, since a kernel may end a timer whose signal is ignored.
  std::signal(SIGCONT, [](int) {});
  sigevent go_on{};
  go_on.sigev_notify = SIGEV_SIGNAL;
  go_on.sigev_signo = SIGCONT;
  itimerspec const each_second{{1, 0}, {1, 0}};
  timer_t timer{};
  if (timer_create(CLOCK_MONOTONIC, &go_on, &timer) == 0) timer_settime(timer, 0, &each_second, nullptr);
}

Guard::Guard(std::string const& control_directory) {
  Pipe pipe = make_pipe();
  pipe_ = std::move(pipe.write_end);
  pid_ = fork_guard();
  if (pid_ == 0) keep_guard(pipe.read_end.get(), control_directory);
}

Guard::~Guard() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  await_child(pid_);
}

bool Guard::has_ended() noexcept {
  if (pid_ < 0 || waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
  pid_ = -1;
  return true;
}

void Guard::tell(pid_t number) noexcept {
  // Pieces this small are written whole. The pipe is never full: the guard does nothing but read.
  [[maybe_unused]] auto const written = write(pipe_.get(), &number, sizeof number);
}

}  // namespace ddp::launcher
