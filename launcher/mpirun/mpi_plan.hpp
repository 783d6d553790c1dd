// The job as one mpirun, its command and its environment: pure functions of the options and the hosts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launcher/options/hosts.hpp"
#include "launcher/options/options.hpp"
#include "launcher/plan/machine.hpp"
#include "launcher/plan/plan.hpp"

namespace ddp::launcher {

/// What the command line does not say.
struct MpiSurroundings {
  std::string launcher;                  ///< ddp-launch's own file: the shim, by the same path on every host
  std::string mpirun;                    ///< its file
  std::vector<std::string> environment;  ///< "NAME=value", as inherited
  bool is_root = false;
  bool allocation_knows_hosts = false;  ///< inside a Slurm or PBS job mpirun finds the hosts itself
  int ranks_here = 1;                   ///< that the local engine would start
};

/// The hosts that the options name, checked; empty if the allocation knows them. Throws ExitError(64).
[[nodiscard]] std::vector<Host> chosen_hosts(Options const& options, MpiSurroundings const& surroundings);

/// A plan whose one process is mpirun. Each host's shims find out about its devices and cores. Throws
/// ExitError(64) for options that do not fit.
[[nodiscard]] Plan make_mpi_plan(Options const& options, Machine const& machine, std::string const& job_id,
                                 std::string const& program, std::vector<Host> const& hosts,
                                 MpiSurroundings const& surroundings);

/// Names of the variables that go to the ranks of other hosts (L15): NCCL_*, CUDA_*, OMP_*, DDP_*,
/// LD_LIBRARY_PATH and what `asked` names. Without those that belong to another job, and CUDA_VISIBLE_DEVICES
/// only if its value leaves no GPU.
[[nodiscard]] std::vector<std::string> exported_names(std::span<std::string const> environment,
                                                      std::span<Export const> asked = {});

/// Whether all of these hosts are this one, called `here`.
[[nodiscard]] bool are_all_here(std::span<Host const> hosts, std::string const& here);

/// Variables for mpirun and its ranks, except those that `environment` ("NAME=value" each) sets already.
/// `files`: the folder where mpirun keeps its files.
[[nodiscard]] Variables mpirun_settings(std::span<std::string const> environment, std::string const& files);

/// Further variables for a job that needs no network: they keep mpirun to the loopback interface. `library`:
/// the path of kLoopbackLibrary; empty for none.
[[nodiscard]] Variables loopback_settings(std::span<std::string const> environment,
                                          std::string const& library);

/// The library that keeps mpirun's own sockets to the loopback interface, loopback_bind.cpp.
inline constexpr char const* kLoopbackLibrary = "ddp_loopback.so";

/// LD_PRELOAD without that library; empty if nothing is left.
[[nodiscard]] std::string users_preload(std::string const& preload);

}  // namespace ddp::launcher
