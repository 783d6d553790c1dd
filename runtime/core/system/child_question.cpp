#include "core/system/child_question.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>
#include <utility>

#include "ddp/core/deadline.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {
namespace {

/// Appends what the child writes until it closes its end, 64 KiB at most. False if the deadline passed first.
bool read_until(int fd, Deadline deadline, std::string& words) {
  constexpr std::size_t kMost = (64_KiB).value;
  std::array<char, 4096> buffer{};
  while (words.size() < kMost) {
    pollfd waiting{fd, POLLIN, 0};
    int const ready =
        deadline.expired() ? 0 : poll(&waiting, 1, static_cast<int>(deadline.remaining().count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    ssize_t const got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    words.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return true;
}

// The child has closed its end of the pipe, so this takes no time unless the child hangs while it exits.
bool ends_before(pid_t child, Deadline deadline) {
  for (;;) {
    siginfo_t ended{};
    if (waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        ended.si_pid == child) {
      return true;
    }
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int reap(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

ChildQuestion::ChildQuestion(std::function<void(int)> const& work) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("making a pipe to a child process", errno);
  reading_ = FileDescriptor(ends[0]);
  FileDescriptor const writing(ends[1]);
  pid_t const parent = getpid();
  child_ = fork();
  if (child_ < 0) throw_errno("starting a child process", errno);
  if (child_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);
    int const nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int const fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, fd);
    work(writing.get());
    _exit(0);
  }
  setpgid(child_, child_);  // the child does it too: one of them is first
}

ChildQuestion::ChildQuestion(ChildQuestion&& other) noexcept
    : begin_(other.begin_), reading_(std::move(other.reading_)), child_(std::exchange(other.child_, -1)) {}

ChildQuestion::~ChildQuestion() {
  if (child_ < 0) return;
  kill(-child_, SIGKILL);
  reap(child_);
}

ChildQuestion::Answer ChildQuestion::answer(std::chrono::milliseconds timeout) {
  auto const gone = std::chrono::floor<Deadline::Duration>(Deadline::Clock::now() - begin_);
  Deadline const deadline = Deadline::after(timeout - gone);
  pid_t const child = std::exchange(child_, -1);
  Answer answer;
  answer.late = !read_until(reading_.get(), deadline, answer.words) || !ends_before(child, deadline);
  if (answer.late) kill(-child, SIGKILL);
  answer.status = reap(child);
  return answer;
}

}  // namespace ddp
