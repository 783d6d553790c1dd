// Terminals: that of ddp-launch, and one for a rank.
#pragma once

#include <sys/ioctl.h>

#include <optional>

#include "launcher/process/environment.hpp"
#include "launcher/process/spawn.hpp"

namespace ddp::launcher {

/// The window of the terminal on which this process writes or reads; nullopt: it has none.
[[nodiscard]] std::optional<winsize> window_of_this_process() noexcept;

/// The part of `window` for a rank's lines, after `taken` columns that ddp-launch writes in front of them.
[[nodiscard]] winsize behind(int taken, winsize window) noexcept;

/// COLUMNS and LINES of that window, where the user set none; without a window 80 and 24.
[[nodiscard]] Variables window_variables(std::optional<winsize> const& window, Lookup const& inherited);

/// A pseudo-terminal as a pipe: what a program writes to `write_end` is read from `read_end`, byte for byte.
/// It is no process's controlling terminal, so no key and no hang-up of it sends a signal. nullopt where none
/// can be made (no /dev/pts).
[[nodiscard]] std::optional<Pipe> make_terminal(winsize const& window);

}  // namespace ddp::launcher
