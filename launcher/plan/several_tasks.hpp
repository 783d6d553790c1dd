// Refuses to run as one of several ddp-launch, each of which would train a model of its own.
#pragma once

#include <span>
#include <string>

#include "ddp/bootstrap/rank_info.hpp"

namespace ddp::launcher {

/// Throws ExitError(64), with the commands that were probably meant, where the environment says that mpirun,
/// srun or the like started this process as one of several. `command`: program and arguments.
void refuse_several_tasks(RankInfo::Lookup const& lookup, std::span<std::string const> command);

}  // namespace ddp::launcher
