// What will be started: a pure function of the options and the machine, printed by --dry-run.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/options.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/plan/machine.hpp"
#include "launcher/plan/rank_environment.hpp"
#include "launcher/plan/rank_layout.hpp"

namespace ddp::launcher {

/// Which streams of a rank are terminals.
struct TerminalStreams {
  Rank rank;
  bool out = false;
  bool err = false;
  [[nodiscard]] bool has(Rank other, bool of_err) const noexcept {
    return other == rank && (of_err ? err : out);
  }
};

struct Plan {
  std::string job_id;  ///< PROGRAM-DATE-PID
  std::string host;
  std::string program;               ///< what exec gets
  std::vector<std::string> command;  ///< argv of each rank, as given
  std::vector<PlannedRank> ranks;
  std::optional<int> mpi_ranks;  ///< of the mpi engine, where `ranks` has one entry, for mpirun itself
  bool tags_have_space = false;  ///< of the mpi engine: how mpirun marks the output of ranks
  bool all_here = true;          ///< of the mpi engine: all of its hosts are this one
  std::string loopback;          ///< the path of kLoopbackLibrary, for that case
  int ranks_per_device = 1;      ///< above 1, every GPU (without one, the CPU) is that many logical devices
  RankDefaults defaults;
  std::vector<std::string> warnings;  ///< to be said before ranks start
  int allowed_cores = 1;
  Variables line_buffering;  ///< by which programs write lines as they are printed; empty: as they like
  std::optional<std::string> log_dir;  ///< nullopt: no files
  bool shows_live_lines = false;       ///< rank 0's output reaches a terminal
  TerminalStreams terminal;            ///< of ranks that are started here
  int taken_columns = 0;               ///< of a terminal's lines, by what stands in front of a rank's
  Variables window;                    ///< COLUMNS and LINES, where the user set none
  int max_restarts = 0;
  std::optional<int> min_ranks;  ///< with --survive: the fewest that may go on
  int replacements = 0;          ///< the most new processes for lost ranks
  int generation = 0;            ///< how often the group was restarted

  [[nodiscard]] int world_size() const { return mpi_ranks.value_or(static_cast<int>(ranks.size())); }
};

/// The most descriptors that ddp-launch itself opens for `ranks` ranks, besides those it was started with.
[[nodiscard]] std::size_t descriptors_needed(int ranks, bool by_mpirun = false,
                                             bool log_files = true) noexcept;

/// Makes a plan for ranks of this host, after choose_gpus(): lay_out_ranks() places ranks on those GPUs, and
/// rank_defaults() gives their environment. `lookup`: the user's. Throws ExitError(64) as lay_out_ranks()
/// does, and where these ranks cannot survive as the options say.
[[nodiscard]] Plan make_plan(Options const& options, Machine const& machine, GpuChoice const& choice,
                             std::string const& job_id, Lookup const& lookup);

/// "train_mlp-20250131-142501-4711": letters, digits, dot, dash and underscore only.
[[nodiscard]] std::string make_job_id(std::string const& program, std::string const& date, long pid);

/// What --dry-run prints.
[[nodiscard]] std::string describe(Plan const& plan);

}  // namespace ddp::launcher
