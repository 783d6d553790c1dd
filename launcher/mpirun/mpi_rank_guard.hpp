// What a shim is while its rank runs: the rank's parent, which ends what a killed mpirun would leave behind,
// and tells ddp-launch how the rank has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/device.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/report/oom_kills.hpp"

namespace ddp::launcher {

/// How a rank that mpirun started has ended.
struct RankEnd {
  enum class Why { by_itself, told_to, without_mpirun };  ///< without: its daemon on that host has ended
  int status = 0;                                         ///< as of waitpid()
  Why why = Why::by_itself;
  Device device{};
  std::string gpu{};  ///< UUID, or empty
  std::optional<OomWatch> oom{};
};
/// For the frame wire::Type::ended; without `oom` if that is too long.
[[nodiscard]] std::string encode_rank_end(RankEnd const& end);
/// Throws Error(protocol).
[[nodiscard]] RankEnd decode_rank_end(std::string const& words);

/// The number by which Open MPI calls the job that its daemons name so, in the names of files: "1973420033"
/// is the number itself, of "prterun-node7-4711@1" (Open MPI 5) it is made of a hash of the name. 0 for none.
[[nodiscard]] std::uint32_t open_mpi_job_number(std::string const& name);

/// Runs `program` with the arguments `command` as the rank at `place`, on the device and the cores of
/// `planned`: as a child in this process's group. Returns its exit code (128 and the signal) when ddp-launch
/// lets this process go: so mpirun does not end other ranks before they know why. When mpirun's daemon on
/// this host, which was its `parent` at its start, has ended, or has told its ranks to end and would
/// kill all that is left: ends the group, and removes what a killed daemon leaves. Ends a daemon that the
/// network has cut off from ddp-launch for a minute, since it would try for a quarter of an hour to report
/// the rank's end.
[[nodiscard]] int run_guarded(std::string const& program, std::vector<std::string> const& command,
                              PlannedRank const& planned, RankInfo const& place, pid_t parent);

}  // namespace ddp::launcher
