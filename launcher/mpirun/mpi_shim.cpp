#include "launcher/mpirun/mpi_shim.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <sstream>

#include "core/parse_number.hpp"
#include "core/system/own_file.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/mpirun/mpi_rank_guard.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/line_buffering.hpp"
#include "launcher/process/terminal.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kWordsBeforeOptions = 4;  // address, port, slots, file
// mpirun sets this where ranks outnumber slots, which never happens here: each rank has a slot.
constexpr char const* kYield = "OMPI_MCA_mpi_yield_when_idle";
constexpr char const* kNotForPeople = "--mpi-shim is not for the command line";

/// Whether the launcher's directory is there. Only its own host has it; elsewhere another user may have made
/// one of that name.
bool is_private(std::string const& directory, std::string const& host) {
  PrivateFolder const folder = open_private_folder(AT_FDCWD, directory);
  if (!folder.exists || folder.handle) return folder.exists;
  throw ExitError(
      exit_code::kCannotCreate,
      text(kErrorDirectory, " ", directory, " on ", host, ": expected ", kPrivateFolder, ", found ",
           folder.found, ", which another user may have made; start the job again, or with another TMPDIR"));
}

}  // namespace

std::vector<std::string> shim_command(std::string const& launcher, MeetingPoint const& point,
                                      std::string const& program, std::vector<std::string> const& options) {
  std::vector<std::string> words{launcher, kShim, point.address, point.port, join(point.slots, ","), program};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  return words;
}

RankInfo read_place(Lookup const& lookup) try {
  RankInfo place = RankInfo::from([&](std::string const& name) {  // of another job, in which mpirun runs
    return name == "DDP_CONTROL" ? std::optional<std::string>{} : lookup(name);
  });
  if (place.source != RankSource::open_mpi) {
    throw ExitError(exit_code::kUsage, text(kNotForPeople, ": expected mpirun's OMPI_COMM_WORLD_*"));
  }
  return place;
} catch (Error const& error) {
  throw ExitError(exit_code::kUsage, text(kShim, ": ", error.what()));
}

Plan plan_of_host(Options const& options, Machine const& machine, RankInfo const& place,
                  Lookup const& lookup) {
  GpuChoice choice = choose_gpus(options, machine);
  choice.cpu_ranks = place.local_size;
  if (!choice.gpus.empty()) {
    int const each = options.ranks_per_device;
    auto const needed = static_cast<std::size_t>((place.local_size + each - 1) / each);
    if (choice.gpus.size() < needed) {
      throw ExitError(exit_code::kNoDevice,
                      text(machine.host, ": ", place.local_size, " ranks are to run here, for ",
                           choice.gpus.size(), choice.gpus.size() == 1 ? " GPU" : " GPUs",
                           "; give the host that many slots, or let ranks share GPUs with --virtual N"));
    }
    choice.gpus.resize(needed);  // the ranks of these share all cores
  }
  Plan plan = make_plan(options, machine, choice, {}, lookup);
  if (place.local_size < place.size) plan.defaults.nccl.clear();  // they are for jobs of one host
  return plan;
}

Variables shim_environment(Lookup const& lookup, RankInfo const& place, Plan const& plan,
                           MeetingPoint const& point) {
  auto variables = place_variables(place, point, plan.max_restarts);
  variables.emplace_back("DDP_GENERATION", text(place.generation));
  if (auto const directory = lookup(kErrorDirectory); directory && is_private(*directory, plan.host)) {
    variables.emplace_back("DDP_ERROR_FILE", error_file(*directory, place.rank));
    variables.emplace_back("TORCHELASTIC_ERROR_FILE", elastic_error_file(*directory, place.rank));
    std::string const flight = flight_link(*directory, place.rank);
    if (access(flight.c_str(), R_OK | W_OK) == 0) variables.emplace_back("DDP_FLIGHT", flight);
  }
  if (place.local_size > plan.allowed_cores && !lookup(kYield)) variables.emplace_back(kYield, "1");
  append(variables, device_variables(plan, plan.ranks[place.local_rank.index()]));
  append(variables, plan.window);
  append(variables, plan.line_buffering);
  return variables;
}

int run_shim(std::vector<std::string> const& words) {
  pid_t const daemon = getppid();
  if (words.size() <= kWordsBeforeOptions) throw ExitError(exit_code::kUsage, kNotForPeople);
  Options options = parse_options(std::span(words).subspan(kWordsBeforeOptions));
  for (std::string& word : options.command) {
    if (!word.starts_with(kArgumentMark)) throw ExitError(exit_code::kUsage, kNotForPeople);
    word.erase(0, 1);
  }
  MeetingPoint point{words[0], words[1], {}};
  Classic<std::istringstream> slots(words[2]);
  for (std::string each; std::getline(slots, each, ',');)
    point.slots.push_back(parse_number<int>(each).value_or(0));
  if (point.slots.empty()) throw ExitError(exit_code::kUsage, kNotForPeople);
  Lookup const lookup = environment_variable;
  RankInfo const place = read_place(lookup);
  Plan plan;
  auto const make = [&] { plan = plan_of_host(options, detect_machine(!options.cpus), place, lookup); };
  await_free_gpus(make, place.generation > 0 ? kTimeoutAtRestart : kTimeoutAtStart);
  if (place.local_rank == 0) {
    for (std::string const& warning : plan.warnings) {
      std::fprintf(stderr, "ddp-launch: warning: %s\n", warning.c_str());
    }
  }
  // mpirun gives each rank a terminal, to which C programs write line by line.
  if (options.line_buffering) plan.line_buffering = line_buffering({}, lookup);
  plan.window = window_variables(std::nullopt, lookup);  // mpirun's terminals have no size
  for (char const* others : {"DDP_CONTROL", "DDP_VIRTUAL_DEVICES", "TORCHELASTIC_ERROR_FILE"})
    unsetenv(others);
  for (auto const& [name, value] : shim_environment(lookup, place, plan, point)) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  unsetenv(kErrorDirectory);
  for (char const* const name : kMpirunFiles) unsetenv(name);
  if (auto const preload = lookup("LD_PRELOAD")) {
    std::string const users = users_preload(*preload);
    users.empty() ? unsetenv("LD_PRELOAD") : setenv("LD_PRELOAD", users.c_str(), 1);
  }
  return run_guarded(words[3], options.command, plan.ranks[place.local_rank.index()], place, daemon);
}

}  // namespace ddp::launcher
