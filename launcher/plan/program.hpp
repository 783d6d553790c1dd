// Which file the program's name means, found before any rank starts, and what runs it.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.hpp"

namespace ddp::launcher {

/// The path to give to exec: `name` itself if it has a slash, otherwise the first executable file of that
/// name in `search_path`, which is like PATH. Throws ExitError(127) where there is none, ExitError(126) where
/// there is one that cannot be executed.
[[nodiscard]] std::string resolve_program(std::string const& name, std::string const& search_path);

/// The same with this process's PATH. `needed_for`: stands in front of the reason.
[[nodiscard]] std::string find_program(std::string const& name, std::string const& needed_for = {});

/// The words that start a rank. A file whose name ends in ".py" gets `python3 -u` in front, a module (-m)
/// `python3 -u -m`, whatever the file's mode or first line; other commands stay as they are. PATH says which
/// python3. Throws ExitError(127) where it is needed and not there.
[[nodiscard]] std::vector<std::string> started_command(Options const& options);

}  // namespace ddp::launcher
