// What --check prints.
#pragma once

#include <span>
#include <string>

#include "launcher/check/machine_check.hpp"
#include "launcher/plan/machine.hpp"

namespace ddp::launcher {

/// One line for each check (verdict, name, what was found; then what was expected and what to do), below it
/// its details, and a last line with the sums.
[[nodiscard]] std::string check_text(std::span<Check const> checks);

/// The same as JSON, and the GPUs of the machine beside it, all of them. docs/launcher.md names the fields.
[[nodiscard]] std::string check_json(std::span<Check const> checks, Machine const& machine);

}  // namespace ddp::launcher
