// ddp-launch: one process per device of a program, watched and explained.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "device/registry/misspelt_variables.hpp"
#include "launcher/check/check_report.hpp"
#include "launcher/check/library_versions.hpp"
#include "launcher/check/machine_check.hpp"
#include "launcher/check/machine_facts.hpp"
#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/mpirun/mpi_shim.hpp"
#include "launcher/options/help.hpp"
#include "launcher/options/options.hpp"
#include "launcher/output/console.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/plan/machine.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/plan/program.hpp"
#include "launcher/plan/several_tasks.hpp"
#include "launcher/process/environment.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/process/line_buffering.hpp"
#include "launcher/process/terminal.hpp"
#include "launcher/restart.hpp"

namespace ddp::launcher {
namespace {

/// If 0, 1 or 2 were closed, the next descriptors opened would take their places.
void open_standard_streams() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

/// Takes over the signals, and raises the limit of open descriptors to the most allowed, since each rank
/// needs seven here. Returns the former limit, which the ranks get.
rlimit take_over() {
  sigset_t const signals = watched_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
  sigaction(SIGXFSZ, &ignore, nullptr);  // a write fails instead, as on a full disk
  rlimit inherited{};
  getrlimit(RLIMIT_NOFILE, &inherited);
  rlimit all = inherited;
  all.rlim_cur = all.rlim_max;
  setrlimit(RLIMIT_NOFILE, &all);
  return inherited;
}

/// Otherwise files or the connection of a rank would fail in the middle of the start.
void refuse_too_few_descriptors(Plan const& plan) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  std::error_code unknown;
  std::filesystem::directory_iterator const open_now("/proc/self/fd", unknown);
  constexpr std::ptrdiff_t kCountedAnyway = 4;  // 0, 1, 2, and the one that reads the folder
  auto const given = unknown ? 0 : std::max<std::ptrdiff_t>(std::distance(open_now, {}) - kCountedAnyway, 0);
  std::size_t const needed =
      descriptors_needed(plan.world_size(), plan.mpi_ranks.has_value(), plan.log_dir.has_value()) +
      static_cast<std::size_t>(given);
  if (needed <= limit.rlim_cur) return;
  throw ExitError(exit_code::kRetry,
                  text("ddp-launch needs ", needed, " file descriptors for ", plan.world_size(),
                       plan.world_size() == 1 ? " rank" : " ranks", ", and may open ", limit.rlim_cur,
                       ": raise the hard limit (ulimit -Hn; nofile in /etc/security/limits.conf, docker "
                       "--ulimit nofile=65536)",
                       plan.log_dir ? "; with --no-log-files it needs two less for each rank" : ""));
}

std::string now_as_text() {
  std::time_t const now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> buffer{};
  std::strftime(buffer.data(), buffer.size(), "%Y%m%d-%H%M%S", &local);
  return buffer.data();
}

/// Makes the log directory. If that fails, the job goes on, unless the user asked for that directory.
LogDirectory make_log_directory(Plan& plan, Options const& options, Console& console) {
  if (!plan.log_dir) return {};
  try {
    return LogDirectory(*plan.log_dir);
  } catch (ExitError const& error) {
    if (options.log_dir) {
      throw ExitError(error.exit_code(), text("--log-dir ", *plan.log_dir, ": ", error.what()));
    }
    console.say_unwritten(text("no log files: cannot make ", *plan.log_dir, ": ", error.what(),
                               "; --log-dir DIR chooses another place, --no-log-files none"));
  }
  plan.log_dir.reset();
  return {};
}

void log_what_was_chosen(Plan const& plan) {
  log(LogLevel::info,
      text("ddp-launch: job ", plan.job_id, ", ",
           plan.mpi_ranks ? text(*plan.mpi_ranks, " ranks by mpirun")
                          : text(plan.ranks.size(), " ranks from ", plan.ranks.front().device),
           ", log files: ", plan.log_dir.value_or("none")));
  for (auto const& [name, value] : plan.defaults.nccl) {
    log(LogLevel::info,
        text("ddp-launch: ", name, "=", value, ": it was unset, and all ranks are on this host"));
  }
  if (plan.defaults.omp_threads) {
    log(LogLevel::info,
        text("ddp-launch: OMP_NUM_THREADS=", *plan.defaults.omp_threads, ": it was unset, and ",
             plan.allowed_cores, " cores are shared by ", plan.ranks.size(), " ranks"));
  }
}

/// To stdout, as all that a command prints.
void print(std::string const& words) {
  if (std::fputs(words.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) return;  // nobody reads any more
  throw ExitError(exit_code::kOutputLost, text("cannot write to stdout: ", std::strerror(errno)));
}

/// Chooses the rank that gets a terminal, and tells the others about ddp-launch's.
void choose_terminal(Plan& plan, Options const& options, Console const& console) {
  if (plan.ranks.size() == 1 || options.terminal) plan.terminal = console.terminal_streams();
  plan.taken_columns = console.taken_columns(plan.world_size());
  auto window = window_of_this_process();
  if (window) window = behind(plan.taken_columns, *window);
  plan.window = window_variables(window, environment_variable);
}

std::filesystem::path own_file() {
  constexpr char const* kLink = "/proc/self/exe";
  std::error_code problem;
  std::filesystem::path file = std::filesystem::read_symlink(kLink, problem);
  if (!problem) return file;
  throw ExitError(exit_code::kNoDevice,
                  text("reading ", kLink, ": ", problem.message(),
                       "; ddp-launch needs /proc, where the kernel shows processes: mount -t "
                       "proc proc /proc"));
}

std::string library(char const* name) {
  return library_to_preload(own_file(), DDP_LIBRARIES_FROM_COMMANDS, name);
}

std::string no_library(char const* name) {
  return text("no ", name, " beside ", own_file().string(), " or in ", DDP_LIBRARIES_FROM_COMMANDS,
              " from there (or blanks or colons in its path)");
}

Plan plan_for_this_host(Options const& options, std::string const& job_id) {
  Machine const machine = detect_machine(!options.cpus);
  Plan plan = make_plan(options, machine, choose_gpus(options, machine), job_id, environment_variable);
  plan.program = find_program(options.command.front());
  if (options.line_buffering) {
    std::string const preloaded = library(kLineBufferLibrary);
    plan.line_buffering = line_buffering(preloaded, environment_variable);
    if (preloaded.empty()) {
      log(LogLevel::info, text("ddp-launch: ", no_library(kLineBufferLibrary),
                               ": what C programs print may come late, and is lost when they are killed"));
    }
  }
  return plan;
}

Plan plan_for_mpi(Options options, std::string const& job_id) {
  MpiSurroundings surroundings;
  surroundings.environment = own_environment();
  surroundings.is_root = geteuid() == 0;
  surroundings.allocation_knows_hosts =
      std::getenv("SLURM_JOB_ID") != nullptr || std::getenv("PBS_JOBID") != nullptr;
  bool const all_here = !options.hostfile && !options.host && !surroundings.allocation_knows_hosts;
  Machine const machine = detect_machine(all_here && !options.cpus);
  if (all_here) {
    GpuChoice const choice = choose_gpus(options, machine);
    surroundings.ranks_here = static_cast<int>(lay_out_ranks(options, machine, choice).size());
    PerNode const per_node = std::exchange(options.per_node, PerNode::unset);  // shims get its meaning
    if (per_node != PerNode::unset && choice.gpus.empty()) options.cpus = choice.cpu_ranks;
    if (per_node == PerNode::count && !choice.gpus.empty()) options.gpus = join(choice.gpus, ",");
  }
  auto const hosts = chosen_hosts(options, surroundings);
  std::string const program = find_program(options.command.front());
  surroundings.mpirun =
      find_program("mpirun", "the mpi engine needs Open MPI's mpirun (package openmpi-bin): ");
  surroundings.launcher = own_file();
  Plan plan =
      make_mpi_plan(options, machine, job_id, std::filesystem::absolute(program), hosts, surroundings);
  std::string const version = program_version(surroundings.mpirun).version;
  plan.tags_have_space = !version.empty() && !is_older(version, "5");
  if (!plan.all_here) return plan;
  plan.loopback = library(kLoopbackLibrary);
  if (plan.loopback.empty()) {
    plan.warnings.push_back(text(no_library(kLoopbackLibrary), ": mpirun listens on every interface"));
  }
  return plan;
}

int check_this_host(Options const& options) {
  MachineFacts const facts = read_facts({DDP_BUILT_CUDA, DDP_BUILT_NCCL, DDP_BUILT_MPI});
  Machine const machine = detect_machine(!options.cpus, InventoryDetail::peers);
  auto const checks = check_machine(options, machine, facts);
  print(options.json ? check_json(checks, machine) : check_text(checks));
  return exit_code_of(checks);
}

int list_devices(Options const& options) {
  Machine machine;
  auto const versions = ask_versions(DDP_BUILT_CUDA, [&] {
    machine = detect_machine(true, options.json ? InventoryDetail::peers : InventoryDetail::cuda);
  });
  print(options.json ? devices_json(options, machine, versions) : devices_text(options, machine, versions));
  return 0;
}

int run(std::vector<std::string> const& arguments) {
  if (!arguments.empty() && arguments.front() == kShim) {
    return run_shim({arguments.begin() + 1, arguments.end()});
  }
  Options options = parse_options(arguments);
  if (options.help) {
    print(help_text());
    return 0;
  }
  if (options.version) {
    print("ddp-launch " DDP_VERSION "\n");
    return 0;
  }
  auto const misspelt = misspelt_variables(variable_names());
  if (options.check || options.list_devices) {
    for (std::string const& warning : misspelt) {
      std::fprintf(stderr, "ddp-launch: warning: %s\n", warning.c_str());
    }
  }
  if (options.check) return check_this_host(options);
  if (options.list_devices) return list_devices(options);
  refuse_several_tasks(environment_variable, options.command);
  std::string const job_id = make_job_id(options.command.front(), now_as_text(), getpid());
  options.command = started_command(options);
  std::vector<std::string> unset;
  for (auto const& [name, value] : options.exports) {
    if (value) setenv(name.c_str(), value->c_str(), 1);
    if (std::getenv(name.c_str()) == nullptr) unset.push_back(name);
  }
  Plan plan;
  await_free_gpus(
      [&] {
        plan = options.engine == Engine::mpi ? plan_for_mpi(options, job_id)
                                             : plan_for_this_host(options, job_id);
      },
      kTimeoutAtStart);
  plan.warnings.insert(plan.warnings.begin(), misspelt.begin(), misspelt.end());
  for (std::string const& name : unset)
    plan.warnings.push_back(text("-x ", name, ": there is no such variable here"));

  rlimit const open_files = take_over();
  if (!options.dry_run) refuse_too_few_descriptors(plan);
  Console console(options, STDOUT_FILENO, STDERR_FILENO);
  plan.shows_live_lines = console.shows_live_lines();
  if (!plan.mpi_ranks) choose_terminal(plan, options, console);
  for (std::string const& warning : plan.warnings) console.say("warning: " + warning);
  if (options.dry_run) {
    print(describe(plan));
    return 0;
  }
  JobFiles files{make_log_directory(plan, options, console), {}};
  if (files.logs) files.logs.remove_stale(plan.world_size(), plan.mpi_ranks.has_value());
  if (options.events) files.events = EventLog(*options.events, plan.job_id, console);
  log_what_was_chosen(plan);
  try {
    return run_job(std::move(plan), options, open_files, console, files);
  } catch (ExitError const& error) {
    files.events.end(error.exit_code(), error.what());
    throw;
  } catch (std::exception const& error) {
    files.events.end(exit_code::kInternal, error.what());
    throw;
  }
}

}  // namespace
}  // namespace ddp::launcher

int main(int argc, char** argv) {
  using ddp::launcher::ExitError;
  namespace exit_code = ddp::launcher::exit_code;
  ddp::launcher::open_standard_streams();
  ddp::launcher::reset_signals();
  try {
    return ddp::launcher::run({argv + 1, argv + argc});
  } catch (ExitError const& error) {
    std::fprintf(stderr, "ddp-launch: %s\n", error.what());
    return error.exit_code();
  } catch (std::exception const& error) {
    std::fprintf(stderr, "ddp-launch: %s\n", error.what());
    return exit_code::kInternal;
  }
}
