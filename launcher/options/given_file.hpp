// A file that the command line names.
#pragma once

#include <string>

#include "ddp/core/deadline.hpp"

namespace ddp::launcher {

/// The content of a regular file or a pipe. Throws ExitError(64), with `option` and `path` in front, for
/// anything else, for what cannot be read, for more than a MiB, and for a pipe that has not ended at the
/// deadline.
[[nodiscard]] std::string read_given_file(std::string const& option, std::string const& path,
                                          Deadline deadline);

}  // namespace ddp::launcher
