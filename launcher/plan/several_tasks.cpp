#include "launcher/plan/several_tasks.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

/// Whether a job manager sets it; a ddp-launch around this one does not count.
bool is_of_a_manager(std::string_view name) {
  static constexpr std::array<std::string_view, 4> kPrefixes{"OMPI_", "PMI_", "MPI_", "SLURM_"};
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

struct Manager {
  char const* command;    ///< that started the tasks
  char const* directly;   ///< starts the program without ddp-launch
  char const* once;       ///< starts one ddp-launch for all hosts
  char const* size_name;  ///< of the variable that tells how many there are
};

Manager manager_of(RankSource source) {
  switch (source) {
    case RankSource::slurm:
      return {"srun", "srun --mpi=pmix -n ", "ddp-launch --nnodes N --gpus LIST|--cpus N",
              "SLURM_STEP_NUM_TASKS"};
    case RankSource::pmi:
      return {"mpiexec", "mpiexec -n ", "ddp-launch --hostfile FILE", "PMI_SIZE"};
    default:
      return {"mpirun", "mpirun --bind-to none -np ", "ddp-launch --hostfile FILE", "OMPI_COMM_WORLD_SIZE"};
  }
}

RankInfo place_in_job(RankInfo::Lookup const& lookup) try {
  return RankInfo::from([&](std::string const& name) {
    return is_of_a_manager(name) ? lookup(name) : std::optional<std::string>{};
  });
} catch (Error const& error) {
  throw ExitError(exit_code::kUsage, error.what());
}

}  // namespace

void refuse_several_tasks(RankInfo::Lookup const& lookup, std::span<std::string const> command) {
  RankInfo const info = place_in_job(lookup);
  if (info.size <= 1) return;
  Manager const manager = manager_of(info.source);
  std::string const program = join(command, " ");
  throw ExitError(
      exit_code::kUsage,
      text(manager.command, " started ", info.size, " tasks, of which this is number ", info.rank,
           ", and in each a ddp-launch would train a model of its own. Probably meant was one of:\n  ",
           manager.directly, info.size, " ", program, "\n  ", manager.once, " -- ", program,
           "\nFor jobs that are to know nothing of each other: env -u ", manager.size_name, " ddp-launch …"));
}

}  // namespace ddp::launcher
