// Open MPI's mpirun as tests use it.
#pragma once

#include <string>

#include "support/launcher/shell.hpp"

namespace ddp::testing {

/// The words before a program with Open MPI's own binding: a core a rank, as long as there are enough.
[[nodiscard]] inline std::string mpirun_with_its_binding(int ranks, std::string const& options = {}) {
  return "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " DDP_MPIRUN " " + options + " -np " +
         std::to_string(ranks) + " ";
}

/// The same for any number of ranks on any number of cores.
[[nodiscard]] inline std::string mpirun(int ranks, std::string const& options = {}) {
  return mpirun_with_its_binding(ranks, "--oversubscribe --bind-to none " + options);
}

}  // namespace ddp::testing
