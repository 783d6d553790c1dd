// A pseudo-terminal: what somebody types, and what a program takes for a terminal.
#pragma once

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <optional>
#include <string_view>

#include "core/system/file_descriptor.hpp"

namespace ddp::testing {

struct Terminal {
  FileDescriptor leader;
  FileDescriptor follower;

  void type(std::string_view keys) const {
    [[maybe_unused]] auto const typed = ::write(leader.get(), keys.data(), keys.size());
  }
  /// A whole line that was typed and that no program has read yet.
  [[nodiscard]] bool has_unread_line() const {
    int waiting = 0;
    return ::ioctl(follower.get(), FIONREAD, &waiting) == 0 && waiting > 0;
  }
};

/// Nothing, with errno set, where there are no pseudo-terminals (no /dev/pts).
[[nodiscard]] inline std::optional<Terminal> open_terminal() {
  int leader = -1;
  int follower = -1;
  if (::openpty(&leader, &follower, nullptr, nullptr, nullptr) != 0) return std::nullopt;
  Terminal terminal{FileDescriptor(leader), FileDescriptor(follower)};
  ::fcntl(leader, F_SETFD, FD_CLOEXEC);
  ::fcntl(follower, F_SETFD, FD_CLOEXEC);
  return terminal;
}

}  // namespace ddp::testing
