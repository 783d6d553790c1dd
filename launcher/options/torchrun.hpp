// What users of torchrun write: programs in Python.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.hpp"

namespace ddp::launcher {

/// The words that start a rank. A file whose name ends in ".py" gets `python3 -u` in front, a module (-m)
/// `python3 -u -m`, whatever the file's mode or first line; other commands stay as they are. PATH says which
/// python3. Throws ExitError(127) where it is needed and not there.
[[nodiscard]] std::vector<std::string> started_command(Options const& options);

}  // namespace ddp::launcher
