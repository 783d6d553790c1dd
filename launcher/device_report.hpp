// What --list-devices prints.
#pragma once

#include <string>

#include "launcher/machine.hpp"
#include "launcher/options.hpp"

namespace ddp::launcher {

/// A line for each GPU that the driver lists, and for each MIG instance below its GPU: its physical number,
/// the logical device that it is for ranks ("cuda:0", with --gpus those of the list, or "hidden"), and what
/// the driver tells. Without GPUs one line that says why. Throws ExitError(64) and ExitError(69) as
/// named_gpus() does.
[[nodiscard]] std::string devices_text(Options const& options, Machine const& machine);

/// The driver's GPUs as JSON, in the order of their physical numbers. docs/launcher.md names the fields.
[[nodiscard]] std::string devices_json(Machine const& machine);

}  // namespace ddp::launcher
