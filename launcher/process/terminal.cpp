#include "launcher/process/terminal.hpp"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {

std::optional<winsize> window_of_this_process() noexcept {
  for (int const fd : {STDOUT_FILENO, STDERR_FILENO, STDIN_FILENO}) {
    winsize window{};
    if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0) return window;
  }
  return std::nullopt;
}

winsize behind(int taken, winsize window) noexcept {
  window.ws_col = static_cast<unsigned short>(std::max(window.ws_col - taken, 1));
  return window;
}

Variables window_variables(std::optional<winsize> const& window, Lookup const& inherited) {
  Variables variables;
  if (!inherited("COLUMNS")) variables.emplace_back("COLUMNS", text(window ? window->ws_col : 80));
  if (!inherited("LINES")) variables.emplace_back("LINES", text(window ? window->ws_row : 24));
  return variables;
}

std::optional<Pipe> make_terminal(winsize const& window) {
  FileDescriptor leader(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!leader || unlockpt(leader.get()) != 0) return std::nullopt;
  FileDescriptor follower(ioctl(leader.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings{};
  if (!follower || tcgetattr(follower.get(), &settings) != 0) return std::nullopt;
  settings.c_oflag &=
      ~static_cast<tcflag_t>(OPOST);  // "\n" stays "\n": log files have the bytes that were written
  if (tcsetattr(follower.get(), TCSANOW, &settings) != 0) return std::nullopt;
  ioctl(leader.get(), TIOCSWINSZ, &window);
  return Pipe{std::move(leader), std::move(follower)};
}

}  // namespace ddp::launcher
