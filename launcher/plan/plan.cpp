#include "launcher/plan/plan.hpp"

#include <algorithm>

#include "core/ascii.hpp"
#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

/// For people: `word` as a shell would need it to read the same word again.
std::string quoted(std::string const& word) {
  auto const plain = [](char c) {
    return is_letter(c) || is_digit(c) || std::string_view("@%+=:,./-_").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, plain)) return word;
  std::string result = "'";
  for (char const c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace

Plan make_plan(Options const& options, Machine const& machine, GpuChoice const& choice,
               std::string const& job_id, Lookup const& lookup) {
  auto ranks = lay_out_ranks(options, machine, choice);
  if (options.survive && static_cast<std::size_t>(options.min_ranks) > ranks.size()) {
    refuse_options(text("--min-ranks ", options.min_ranks, ": the job has ", ranks.size(),
                        ranks.size() == 1 ? " rank" : " ranks"));
  }
  auto defaults = rank_defaults(ranks, machine.allowed_cores, lookup);
  Plan plan;
  plan.job_id = job_id;
  plan.host = machine.host;
  plan.command = options.command;
  plan.ranks = std::move(ranks);
  plan.ranks_per_device = options.ranks_per_device;
  plan.defaults = std::move(defaults);
  plan.warnings = choice.warnings;
  plan.allowed_cores = machine.allowed_cores;
  if (options.log_files) plan.log_dir = options.log_dir.value_or("ddp-logs/" + job_id);
  plan.max_restarts = options.max_restarts;
  if (options.survive) plan.min_ranks = options.min_ranks;
  plan.replacements = options.replacements;
  return plan;
}

std::size_t descriptors_needed(int ranks, bool by_mpirun, bool log_files) noexcept {
  constexpr std::size_t kOwn = 24;  // measured: at most 20
  // Memory of the flight recorder; of ranks that are started here also two pipes, a pidfd and a connection.
  std::size_t const each = (by_mpirun ? 2 : 5) + (log_files ? 2 : 0);
  return kOwn + each * static_cast<std::size_t>(ranks);
}

std::string make_job_id(std::string const& program, std::string const& date, long pid) {
  std::string name = program.substr(program.find_last_of('/') + 1);
  for (char& c : name) {
    bool const kept = is_letter(c) || is_digit(c) || c == '.' || c == '_' || c == '-';
    if (!kept) c = '_';
  }
  return text(name.substr(0, 64), "-", date, "-", pid);
}

std::string describe(Plan const& plan) {
  std::string command;
  for (std::string const& word : plan.command) command += " " + quoted(word);
  std::string const log_files = plan.log_dir.value_or("none");
  if (plan.mpi_ranks) {
    return text("job       ", plan.job_id, "\nengine    mpi: ", *plan.mpi_ranks, " ranks\nlog files ",
                log_files, "\ncommand  ", command, "\n");
  }
  std::string description = text(
      "job       ", plan.job_id, "\nengine    local, on ", plan.host, "\ncommand  ", command, "\nprogram   ",
      plan.program, "\nlog files ", log_files, "\ncores     ", plan.allowed_cores, " allowed for ",
      plan.ranks.size(), " ranks; OMP_NUM_THREADS",
      plan.defaults.omp_threads ? text("=", *plan.defaults.omp_threads, " (it was unset)") : " as inherited",
      "\n");
  JobFacts const later{"<control directory>/control", "<control directory>", "<a free port>",
                       "<memory of ddp-launch>", "<the pipe>"};
  for (PlannedRank const& rank : plan.ranks) {
    description += text("rank ", rank.rank, ": ", rank.device,
                        rank.gpu_name.empty() ? std::string{} : text(" = ", rank.gpu_name, " ", rank.gpu),
                        rank.cpus.empty() ? std::string{} : ", cores " + cpu_list(rank.cpus), ", stdin ",
                        rank.rank == 0 ? "as inherited" : "/dev/null", "\n");
    for (auto const& [name, value] : rank_environment(plan, rank, later)) {
      description += text("  ", name, "=", value, "\n");
    }
  }
  return description;
}

}  // namespace ddp::launcher
