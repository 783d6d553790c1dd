// Which file the program's name means, found before any rank starts.
#pragma once

#include <string>

namespace ddp::launcher {

/// The path to give to exec: `name` itself if it has a slash, otherwise the first executable file of that
/// name in `search_path`, which is like PATH. Throws ExitError(127) where there is none, ExitError(126) where
/// there is one that cannot be executed.
[[nodiscard]] std::string resolve_program(std::string const& name, std::string const& search_path);

/// The same with this process's PATH. `needed_for`: stands in front of the reason.
[[nodiscard]] std::string find_program(std::string const& name, std::string const& needed_for = {});

}  // namespace ddp::launcher
