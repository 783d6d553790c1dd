// Terminals: that of ddp-launch, and one for a rank.
#pragma once

#include <sys/ioctl.h>

#include <optional>

#include "launcher/process/environment.hpp"
#include "launcher/process/spawn.hpp"

namespace ddp::launcher {

/// Of the terminal to which this process writes, or from which it reads; nullopt: it has none.
[[nodiscard]] std::optional<winsize> window_of_this_process() noexcept;

/// What a rank's lines may fill of `window`, behind `taken` columns that ddp-launch writes in front.
[[nodiscard]] winsize behind(int taken, winsize window) noexcept;

/// COLUMNS and LINES, where the user set none: of that window, without one 80 and 24.
[[nodiscard]] Variables window_variables(std::optional<winsize> const& window, Lookup const& inherited);

/// A pseudo-terminal as a pipe: what a program writes to `write_end` is read from `read_end`, byte for byte.
/// It becomes nobody's controlling terminal, so no key and no hang-up of it reaches a process. nullopt where
/// there is none to be had (no /dev/pts).
[[nodiscard]] std::optional<Pipe> make_terminal(winsize const& window);

}  // namespace ddp::launcher
