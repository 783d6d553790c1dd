// What mpirun starts as each rank: it prepares the rank's place, and runs the program.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "launcher/options/options.hpp"
#include "launcher/plan/machine.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/process/environment.hpp"

namespace ddp::launcher {

/// The hidden first argument that makes ddp-launch a shim.
inline constexpr char const* kShim = "--mpi-shim";
/// Stands before each of the program's words on their way through mpirun, which takes a lone ":" for its own.
inline constexpr char kArgumentMark = '=';
/// Names the directory for structured errors. On hosts that have it, it must belong to this user alone.
inline constexpr char const* kErrorDirectory = "DDP_ERROR_DIRECTORY";

/// Tell mpirun where to keep its files on its host: Open MPI 4's, and 5's. Ranks must not inherit them.
inline constexpr std::array<char const*, 2> kMpirunFiles{"OMPI_MCA_orte_local_tmpdir_base",
                                                         "PRTE_MCA_prte_local_tmpdir_base"};

/// The words that start a shim; the program's name and arguments follow, each behind kArgumentMark.
/// `program`: its file. `options`: ddp-launch's own, for the ranks of one host.
[[nodiscard]] std::vector<std::string> shim_command(std::string const& launcher, MeetingPoint const& point,
                                                    std::string const& program,
                                                    std::vector<std::string> const& options);

/// Where mpirun has put a rank. Throws ExitError(64) if mpirun's variables are not there.
[[nodiscard]] RankInfo read_place(Lookup const& lookup);

/// What the local engine would do on this host for as many ranks as mpirun starts here (L2, L11). Throws
/// ExitError as choose_gpus() and make_plan() do, and ExitError(69) if there are more ranks than devices.
[[nodiscard]] Plan plan_of_host(Options const& options, Machine const& machine, RankInfo const& place,
                                Lookup const& lookup);

/// The variables of a rank. Throws ExitError(73) where kErrorDirectory is there and not this user's alone.
[[nodiscard]] Variables shim_environment(Lookup const& lookup, RankInfo const& place, Plan const& plan,
                                         MeetingPoint const& point);

/// Runs the program of `words`, the arguments after kShim: see run_guarded(). Returns its exit code.
[[nodiscard]] int run_shim(std::vector<std::string> const& words);

}  // namespace ddp::launcher
