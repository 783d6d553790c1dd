// What mpirun starts as each rank: it becomes the program.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/plan.hpp"

namespace ddp::launcher {

/// The hidden first word of ddp-launch as a shim.
inline constexpr char const* kShim = "--mpi-shim";
/// Stands before each of the program's words on their way through mpirun, which takes a lone ":" for its own.
inline constexpr char kArgumentMark = '=';
/// Names the directory for structured errors, on hosts that have it.
inline constexpr char const* kErrorDirectory = "DDP_ERROR_DIRECTORY";

/// The words that start a shim; the program's name and arguments follow, each behind kArgumentMark.
/// `cpu_ranks`: hide GPUs. `program`: the file that it becomes.
[[nodiscard]] std::vector<std::string> shim_command(std::string const& launcher, bool cpu_ranks,
                                                    std::string const& master, std::string const& program);

/// The variables of a rank, from those that mpirun sets (`lookup`). Throws ExitError(64) if they are not
/// there.
[[nodiscard]] Variables shim_environment(
    std::function<std::optional<std::string>(std::string const&)> const& lookup, bool cpu_ranks,
    std::string const& master);

/// Becomes the program of `words`, those behind kShim. A guard process stays behind: when what started this
/// rank dies, in whatever way, it kills the rank with its children, and when the rank ends, what is left of
/// them (L7). Returns only with an exit code for a program that cannot be started.
[[nodiscard]] int run_shim(std::vector<std::string> const& words);

}  // namespace ddp::launcher
