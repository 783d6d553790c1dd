// Programs in Python, as users of torchrun name them.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.hpp"

namespace ddp::launcher {

/// The words that a rank is started with: `python3 -u` in front of a file whose name ends in ".py", and
/// `python3 -u -m` in front of a module (-m), whatever the file's mode or first line; other commands as they
/// are. Which python3, PATH says, as for any program. Throws ExitError(127) where it is needed and not there.
[[nodiscard]] std::vector<std::string> started_command(Options const& options);

}  // namespace ddp::launcher
