// What became of each rank, and which failure was the first cause. Plain values, pure functions.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/observe/progress.hpp"
#include "launcher/report/oom_kills.hpp"

namespace ddp::launcher {

/// What a rank said about its own failure, through the control socket or DDP_ERROR_FILE.
struct ReportedError {
  Failure failure;
  std::string code = std::string(to_string(failure.code));  ///< or what another program writes as its code
  std::vector<std::string> callstack = {};                  ///< the last lines of PyTorch's "py_callstack"
};

/// Reads what write_error_file() writes; other programs' {"code": …, "message": …}; what PyTorch writes too,
/// {"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": "1769860800"}}}. nullopt for
/// anything else.
[[nodiscard]] std::optional<ReportedError> parse_error_file(std::string const& json);

struct RankOutcome {
  using Clock = std::chrono::steady_clock;

  Rank rank;
  std::string title = {};  ///< what it is, if it is no rank: "mpirun"
  std::string host = {};   ///< of a rank that mpirun started, as far as it is known
  pid_t pid = -1;
  std::optional<Device> device;  ///< if it is known
  std::string gpu;               ///< UUID, or empty

  bool joined = false;       ///< the control plane's group
  bool left = false;         ///< in order
  pid_t member = -1;         ///< the process that joined: the rank's, or one that it started
  std::string stopped = {};  ///< how_stopped(), when the job first failed
  std::optional<ReportedError> error;
  std::optional<Progress> progress{};  ///< the last that it reported
  std::string last_collective;         ///< as its flight recorder has it, if it failed; empty: none

  bool ended = false;
  int exit_code = 0;  ///< if no signal ended it
  int signal = 0;     ///< that ended it, or 0
  bool core_dumped = false;
  bool killed_by_launcher = false;  ///< as a consequence of what happened before
  bool without_mpirun = false;      ///< killed since mpirun, or its daemon on that host, had ended
  bool late = false;                ///< killed since it did not come to the others' World::rebuild() in time
  bool survived = false;            ///< it failed, or left early, and the others have gone on without it
  int replacement = 0;              ///< RankInfo::replacement
  bool newcomer = false;            ///< it stands for a lost rank, and was not taken in
  bool unneeded = false;            ///< killed since the others had ended before they took it in
  bool unheard = false;             ///< nothing tells how it has ended, though others failed because of it
  int exec_error = 0;               ///< errno, if the program could not be started
  std::optional<OomWatch> oom{};    ///< of a failed rank, where the kernel tells

  Clock::time_point first_trouble{};  ///< its own error report or its end, whichever came first

  std::vector<std::string> last_stderr;
  std::string out_file;  ///< empty: none
  std::string err_file;
  std::string out_problem = {};  ///< LogFile::problem(): why `out_file` has not all of it
  std::string err_problem = {};
};

/// How many have ended with 0, but for newcomers and those that ignored_a_loss().
[[nodiscard]] std::size_t ended_well(std::span<RankOutcome const> outcomes);

/// A signal, a code other than 0, or no word of its end.
[[nodiscard]] bool failed(RankOutcome const& outcome);

/// F4: in a job of several ranks, it had joined and exited with 0 without leaving the group. That is a
/// failure only if another rank says that it waited.
[[nodiscard]] bool left_early(RankOutcome const& outcome, std::size_t size);

/// Whether the failure only followed from another rank's.
[[nodiscard]] bool follows_another(Failure const& failure);
/// Whether the failure is only that another rank did not come, or is gone.
[[nodiscard]] bool waited_for_another(Failure const& failure);
/// Whether the rank's failure only followed from another's: ddp-launch killed it, or its error says so.
[[nodiscard]] bool is_consequence(RankOutcome const& outcome);

/// Whether it reported an error that follows from no other, and then left in order and exited with 0, as when
/// exit() destroys a World in a global object. That is no failure, unless others fail because of it.
[[nodiscard]] bool left_with_an_error(RankOutcome const& outcome);

/// Whether it heard that others were lost, went on without World::rebuild(), and exited with 0 all the same.
/// Under --survive it has not done the job's work.
[[nodiscard]] bool ignored_a_loss(RankOutcome const& outcome);

/// The first of these that exists, of ranks without which the others have not gone on: the first failure that
/// does not say that it follows from another; the first rank that left_with_an_error() or left_early(); the
/// first failure; if nothing else failed, the first rank that ddp-launch killed because it was stopped. No
/// other rank that ddp-launch itself has killed.
[[nodiscard]] std::optional<std::size_t> first_failure(std::span<RankOutcome const> outcomes);

/// The rank for which others waited in vain, where the failure says why: it is stopped, left the group in
/// order, or is gone.
[[nodiscard]] std::optional<Rank> began_with(Failure const& failure);

/// first_failure(). If its failure began_with() a rank that was stopped, or that left in order and exited
/// with 0, that rank; if a deadline passed, any rank that was stopped.
[[nodiscard]] std::optional<std::size_t> first_cause(std::span<RankOutcome const> outcomes);

/// What ddp-launch exits with for this failure (L9).
[[nodiscard]] int exit_code_of(RankOutcome const& outcome, std::size_t size);

/// "was killed by signal 9 (SIGKILL)", "exited with code 3", "was stopped by a signal …, and then exited …".
[[nodiscard]] std::string describe_end(RankOutcome const& outcome, std::size_t size);

}  // namespace ddp::launcher
