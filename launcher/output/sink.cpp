#include "launcher/output/sink.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/pausing_deadline.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

/// Pipes take this much when poll() says that they are writable.
constexpr std::size_t kAtomicPiece = 4096;

bool writable_within(int fd, Deadline::Duration timeout) {
  pollfd waiting{fd, POLLOUT, 0};
  return poll(&waiting, 1, static_cast<int>(timeout.count())) > 0;
}

}  // namespace

Sink::Sink(int fd) : fd_(fd) {
  struct stat status {};
  is_terminal_ = isatty(fd) == 1;
  if (fstat(fd, &status) != 0) {
    closed_ = true;
    return;
  }
  if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
    // O_NONBLOCK is a property of the open file, which the shell and others share. So open the file anew.
    std::string const path = text("/proc/self/fd/", fd);
    own_ = FileDescriptor(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (own_) fd_ = own_.get();
  }
  blocking_ = !own_ && !S_ISSOCK(status.st_mode);
}

void Sink::write(std::string_view bytes) {
  if (closed_) return;
  pending_.append(bytes);
}

void Sink::drop() noexcept {
  pending_.clear();
  written_ = 0;
}

void Sink::flush() {
  while (!closed_ && pending() > 0) {
    char const* const data = pending_.data() + written_;
    ssize_t count = 0;
    if (own_) {
      count = ::write(fd_, data, pending());
    } else if (blocking_) {
      if (!writable_within(fd_, Deadline::Duration{0})) return;
      count = ::write(fd_, data, std::min(pending(), kAtomicPiece));
    } else {
      count = send(fd_, data, pending(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      bool const hung_up =
          errno == EPIPE || (errno == ECONNRESET && !blocking_) || (errno == EIO && is_terminal_);
      if (!hung_up) problem_ = errno;
      closed_ = true;
      break;
    }
    written_ += static_cast<std::size_t>(count);
  }
  if (closed_ || pending() == 0) {
    drop();
  } else if (written_ > (1_MiB).value) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

std::size_t Sink::flush_all(Deadline::Duration timeout, int interrupt_fd) {
  flush();
  for (PausingDeadline left(timeout); pending() > 0;) {
    std::size_t const before = pending();
    std::array<pollfd, 2> waiting{pollfd{fd_, POLLOUT, 0}, pollfd{interrupt_fd, POLLIN, 0}};
    int const ready = poll(waiting.data(), waiting.size(), static_cast<int>(left.nap().count()));
    if (ready <= 0 && !left.ended()) continue;
    if (ready <= 0 || waiting[1].revents != 0) break;
    flush();
    if (pending() == before) break;
    left = PausingDeadline(timeout);
  }
  std::size_t const dropped = pending();
  drop();
  return dropped;
}

}  // namespace ddp::launcher
