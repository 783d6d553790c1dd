// The job as one mpirun: a pure function of the options and the hosts.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/options/hosts.hpp"
#include "launcher/options/options.hpp"
#include "launcher/plan/machine.hpp"
#include "launcher/plan/plan.hpp"

namespace ddp::launcher {

/// What the command line does not tell.
struct MpiSurroundings {
  std::string launcher;                  ///< ddp-launch's own file: the shim, by the same path on every host
  std::string mpirun;                    ///< its file
  std::vector<std::string> environment;  ///< "NAME=value", as inherited
  bool is_root = false;
  bool allocation_knows_hosts = false;  ///< inside a Slurm or PBS job mpirun finds the hosts itself
  int ranks_here = 1;                   ///< that the local engine would start
};

/// The hosts that the options name, judged; empty where an allocation is to tell. Throws ExitError(64).
[[nodiscard]] std::vector<Host> chosen_hosts(Options const& options, MpiSurroundings const& surroundings);

/// A plan whose one process is mpirun. What is to be known of a host's devices and cores, its shims find out
/// there. Throws ExitError(64) for options that do not fit.
[[nodiscard]] Plan make_mpi_plan(Options const& options, Machine const& machine, std::string const& job_id,
                                 std::string const& program, std::vector<Host> const& hosts,
                                 MpiSurroundings const& surroundings);

/// Of the variable `name` in `environment`, "NAME=value" each.
[[nodiscard]] std::optional<std::string> value_of(std::string const& name,
                                                  std::span<std::string const> environment);

/// The first host of SLURM_JOB_NODELIST's "gpu[007-009,12],login"; empty for none.
[[nodiscard]] std::string first_of_nodelist(std::string const& list);

/// The variables that go to the ranks of other hosts (L15), by name: NCCL_*, CUDA_*, OMP_*, DDP_* and
/// LD_LIBRARY_PATH, less those that are another job's.
[[nodiscard]] std::vector<std::string> exported_names(std::span<std::string const> environment);

}  // namespace ddp::launcher
