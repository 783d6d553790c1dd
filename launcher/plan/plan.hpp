// What will be started: a pure function of the options and the machine, printed by --dry-run.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/ids.hpp"
#include "launcher/options/options.hpp"
#include "launcher/plan/machine.hpp"
#include "launcher/process/environment.hpp"

namespace ddp::launcher {

using Variables = std::vector<std::pair<std::string, std::string>>;

inline void append(Variables& variables, Variables const& more) {
  variables.insert(variables.end(), more.begin(), more.end());
}

struct PlannedRank {
  Rank rank;
  Device device;   ///< what the rank binds: cpu:0, or the logical GPU of its number, or its only one
  GpuId gpu = {};  ///< empty for CPU ranks
  std::string gpu_name = {};   ///< "NVIDIA H200"
  std::vector<int> cpus = {};  ///< that it is to keep to; empty: all that are allowed
};

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
  bool all_here = true;          ///< of the mpi engine: all of its hosts are this one
  std::string loopback;          ///< the path of kLoopbackLibrary, for that case
  int ranks_per_device = 1;      ///< above 1, every GPU (without one, the CPU) is that many logical devices
  bool one_device_each = false;  ///< ranks see only their own: MIG instances are used
  Variables nccl_defaults;       ///< for GPU ranks, where the user set none
  std::vector<std::string> warnings;  ///< to be said before ranks start
  int allowed_cores = 1;
  std::optional<int> omp_threads;  ///< OMP_NUM_THREADS, where the user set none
  Variables line_buffering;        ///< by which programs write lines as they are printed; empty: as they like
  std::optional<std::string> log_dir;  ///< nullopt: no files
  bool shows_live_lines = false;       ///< rank 0's output reaches a terminal
  TerminalStreams terminal;            ///< of ranks that are started here
  int taken_columns = 0;               ///< of a terminal's lines, by what stands in front of a rank's
  Variables window;                    ///< COLUMNS and LINES, where the user set none
  int max_restarts = 0;
  int generation = 0;  ///< how often the group was restarted

  [[nodiscard]] int world_size() const { return mpi_ranks.value_or(static_cast<int>(ranks.size())); }
};

/// The most descriptors that ddp-launch itself holds for so many ranks, besides those that it was given.
[[nodiscard]] std::size_t descriptors_needed(int ranks, bool by_mpirun = false,
                                             bool log_files = true) noexcept;

/// What is known only once the job exists.
struct JobFacts {
  std::string control;      ///< path of the control socket
  std::string error_dir;    ///< where ranks write structured errors
  std::string master_port;  ///< a port of the loopback interface that was free when asked
  std::string flight = {};  ///< memory for the rank's FlightRecorder; empty for none
  std::string out = {};     ///< place_of() the pipe that is its stdout
};

/// For ranks of this host. `lookup`: the user's environment. Throws ExitError as choose_gpus() does, and
/// ExitError(64) for options that do not fit the ranks that result.
[[nodiscard]] Plan make_plan(Options const& options, Machine const& machine, std::string const& job_id,
                             std::string const& program, Lookup const& lookup);

/// Of a rank's variables, those that follow from devices and cores.
[[nodiscard]] Variables device_environment(Plan const& plan, PlannedRank const& rank);

/// The variables that ddp-launch sets for one rank, in the order in which they are documented.
[[nodiscard]] Variables rank_environment(Plan const& plan, PlannedRank const& rank, JobFacts const& facts);

/// Whether a variable of that name belongs to one launcher's job, and would mislead a rank of another's.
[[nodiscard]] bool is_of_one_job(std::string_view name);

/// `inherited` ("NAME=value" each) with `changes` applied, without what belongs to another job.
[[nodiscard]] std::vector<std::string> merge_environment(std::span<std::string const> inherited,
                                                         Variables const& changes);

/// Where the rank writes its structured error.
[[nodiscard]] std::string error_file(std::string const& error_dir, Rank rank);

/// Where PyTorch writes the exception that ended the rank, if the program asks for that (`record`).
[[nodiscard]] std::string elastic_error_file(std::string const& error_dir, Rank rank);

/// Leads to the memory of the rank's flight recorder, where mpirun starts the ranks.
[[nodiscard]] std::string flight_link(std::string const& error_dir, Rank rank);

/// "train_mlp-20250131-142501-4711": letters, digits, dot, dash and underscore only.
[[nodiscard]] std::string make_job_id(std::string const& program, std::string const& date, long pid);

/// What --dry-run prints.
[[nodiscard]] std::string describe(Plan const& plan);

}  // namespace ddp::launcher
