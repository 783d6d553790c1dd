// Open MPI's mpirun as tests use it.
#pragma once

#include <string>

#include "support/shell.hpp"

namespace ddp::testing {

/// The words before a program: any number of ranks on any number of cores, also as root in a container.
[[nodiscard]] inline std::string mpirun(int ranks, std::string const& options = {}) {
  return "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " DDP_MPIRUN
         " --oversubscribe --bind-to none " +
         options + " -np " + std::to_string(ranks) + " ";
}

}  // namespace ddp::testing
