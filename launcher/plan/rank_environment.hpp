// The variables of each rank (L4): RANK, MASTER_ADDR, CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS and the others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/rank_layout.hpp"
#include "launcher/process/environment.hpp"

namespace ddp::launcher {

struct Plan;

/// What ranks get where the user set nothing.
struct RankDefaults {
  Variables nccl;                  ///< of GPU ranks
  std::optional<int> omp_threads;  ///< OMP_NUM_THREADS (D14)
};

/// `lookup`: the user's environment.
[[nodiscard]] RankDefaults rank_defaults(std::span<PlannedRank const> ranks, int allowed_cores,
                                         Lookup const& lookup);

/// What is known only once the job exists.
struct JobFacts {
  std::string control;      ///< path of the control socket; for mpirun an Invitation
  std::string error_dir;    ///< where ranks write structured errors
  std::string master_port;  ///< a port of the loopback interface that was free when asked
  std::string flight = {};  ///< memory for the rank's FlightRecorder; empty for none
  std::string out = {};     ///< place_of() the pipe that is its stdout
  int replacement = 0;      ///< RankInfo::replacement
};

/// The variables that ddp-launch sets for one rank, in the order in which they are documented.
[[nodiscard]] Variables rank_environment(Plan const& plan, PlannedRank const& rank, JobFacts const& facts);

/// What all ranks of a job get with the same value.
struct MeetingPoint {
  std::string address;     ///< MASTER_ADDR, where rank 0 may listen
  std::string port;        ///< MASTER_PORT
  std::vector<int> slots;  ///< ranks of each host, in the order of ranks
};

/// Parts of rank_environment() from which a shim of mpirun makes the variables of its rank: those of its
/// place in the job, as PyTorch's programs are told too, and those that follow from devices and cores.
[[nodiscard]] Variables place_variables(RankInfo const& place, MeetingPoint const& point, int max_restarts);
[[nodiscard]] Variables device_variables(Plan const& plan, PlannedRank const& rank);

/// Whether a variable of that name is for the ranks of one launcher's job, and would mislead another job's.
[[nodiscard]] bool is_of_one_job(std::string_view name);

/// `inherited` ("NAME=value" each) with `changes` applied, without what belongs to another job.
[[nodiscard]] std::vector<std::string> merge_environment(std::span<std::string const> inherited,
                                                         Variables const& changes);

/// Where the rank writes its structured error.
[[nodiscard]] inline std::string error_file(std::string const& error_dir, Rank rank) {
  return text(error_dir, "/rank", rank, ".error.json");
}

/// Where PyTorch writes the exception that ended the rank, if the program asks for that (`record`).
[[nodiscard]] inline std::string elastic_error_file(std::string const& error_dir, Rank rank) {
  return text(error_dir, "/rank", rank, ".torchelastic.json");
}

/// Leads to the memory of the rank's flight recorder, where mpirun starts the ranks.
[[nodiscard]] inline std::string flight_link(std::string const& error_dir, Rank rank) {
  return text(error_dir, "/rank", rank, ".flight");
}

}  // namespace ddp::launcher
