// Which rank this process is, and how many there are: the only reader of rank variables.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// What started this process, according to its environment.
enum class RankSource { alone, launcher, open_mpi, pmi, slurm, pmix, address, program };
[[nodiscard]] char const* to_string(RankSource source) noexcept;

/// A process's place in its job. Plain values; reading them opens nothing.
struct RankInfo {
  Rank rank{0};             ///< among all processes of the job
  int size = 1;             ///< 0: only MPI knows (PMIX_RANK alone)
  LocalRank local_rank{0};  ///< among the processes of this host
  int local_size = 1;       ///< processes of this host
  bool local_known = true;  ///< false: this host's processes are not known, and assumed to be all of the job
  RankSource source = RankSource::alone;  ///< where all this comes from
  std::string job_id;                     ///< names the job in logs; empty when started alone
  int generation = 0;                     ///< how often the whole group was restarted
  int replacement = 0;           ///< how often this rank's process was replaced, each time after a loss
  int min_ranks = 0;             ///< DDP_MIN_RANKS: rank 0 lets the others go on as long as so many are left;
                                 ///< 0: the job ends with its first lost rank, unless ddp-launch decides
  bool survives = false;         ///< either of them lets the others go on when a rank is lost
  std::string control;           ///< path of ddp-launch's control socket (launcher), or how ranks that it
                                 ///< starts through mpirun find it; empty without ddp-launch
  std::string address;           ///< where ranks find rank 0; empty where they need not know
  int port = 0;                  ///< with it
  std::string secret;            ///< DDP_JOB_SECRET: what ranks say to rank 0; may be empty
  bool secret_is_known = false;  ///< it is the name of a step of srun: it tells jobs apart, no more
  std::string error_file;        ///< where to write a structured error; empty for nowhere

  /// Looks a variable up; nullopt when it is not set.
  using Lookup = std::function<std::optional<std::string>(std::string const& name)>;

  /// From the process's environment. Sources in this order, the first complete one wins: DDP_CONTROL with
  /// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (ddp-launch); OMPI_COMM_WORLD_*; PMI_RANK with PMI_SIZE;
  /// SLURM_PROCID with SLURM_NTASKS inside an srun step; PMIX_RANK, which carries no size; RANK, WORLD_SIZE,
  /// MASTER_ADDR, MASTER_PORT (by hand, PyTorchJob, torchrun); otherwise alone. Where srun offers no PMIx,
  /// ranks find rank 0 by MASTER_ADDR and MASTER_PORT if they are set, else on the first host of
  /// SLURM_STEP_NODELIST, at a port that is a hash of job and step; with DDP_MIN_RANKS also where it does.
  /// Throws Error(invalid_argument) for values that are not numbers or contradict each other, for RANK and
  /// WORLD_SIZE without MASTER_ADDR, and for DDP_MIN_RANKS where ranks find each other through MPI.
  [[nodiscard]] static RankInfo from_environment();
  /// The same as a pure function of `lookup`.
  [[nodiscard]] static RankInfo from(Lookup const& lookup);
};

}  // namespace ddp
