#include "launcher/mpi_shim.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <sstream>
#include <thread>

#include "core/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "launcher/cores.hpp"
#include "launcher/exit_code.hpp"
#include "launcher/guard.hpp"
#include "launcher/mpi_daemon.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kWordsBeforeOptions = 4;  // address, port, slots, file
constexpr char const* kNotForPeople = "--mpi-shim is not for the command line";
constexpr milliseconds kTimeToEnd{1900};
constexpr milliseconds kBetweenLooks{5000};

FileDescriptor open_pidfd(pid_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

void wait_for_any(std::span<pollfd> ends, milliseconds patience) {
  while (poll(ends.data(), ends.size(), static_cast<int>(patience.count())) < 0 && errno == EINTR) {
  }
}

/// mpirun's daemon of a host that the network has left waits for a quarter of an hour to be rid of the news
/// that its rank has ended. `folder`: its files.
void end_unheard_daemon(pid_t daemon, std::span<pollfd> end, std::filesystem::path const& folder) {
  while (end[0].revents == 0) {
    wait_for_any(end, kBetweenLooks);
    if (end[0].revents != 0 || !is_unheard(daemon)) continue;
    kill(daemon, SIGKILL);
    wait_for_any(end, kTimeToEnd);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    std::filesystem::remove(folder.parent_path(), ignored);  // if it is empty
  }
}

/// The guard: waits for the end of `parent` or of `rank`, then ends the rank's process group.
[[noreturn]] void keep_rank_guard(FileDescriptor const& parent, FileDescriptor const& rank, pid_t group,
                                  pid_t daemon, std::filesystem::path const& files_of_daemon) {
  setsid();
  name_guard_process();
  // Descriptors 0 and 1 become the two; nothing of the rank's stays open.
  std::array<int, 2> kept{dup(parent.get()), dup(rank.get())};
  for (int i = 0; i < 2; ++i) dup2(kept[static_cast<std::size_t>(i)], i);
  close_range(2, ~0U, 0);
  std::array<pollfd, 2> ends{pollfd{0, POLLIN, 0}, pollfd{1, POLLIN, 0}};
  wait_for_any(ends, milliseconds(-1));
  Deadline const deadline = Deadline::after(kTimeToEnd);
  while (kill(-group, SIGKILL) == 0 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(10));
  if (is_mpi_daemon(daemon)) end_unheard_daemon(daemon, std::span(ends).first(1), files_of_daemon);
  _exit(0);
}

/// Those of this job, by the variable that it gives its ranks; empty if that is not what is expected.
std::filesystem::path files_of_daemon() {
  char const* const folder = std::getenv("PMIX_SERVER_TMPDIR");
  std::filesystem::path const path(folder != nullptr ? folder : "");
  bool const expected = path.is_absolute() && path.filename().string().starts_with("jf.") &&
                        path.parent_path().filename().string().starts_with("ompi.");
  return expected ? path : std::filesystem::path{};
}

/// Twice forked, so that the program finds no child that it did not start.
void start_rank_guard() {
  if (getpgrp() != getpid()) setpgid(0, 0);
  pid_t const group = getpid();
  pid_t const parent_pid = getppid();
  FileDescriptor const parent = open_pidfd(parent_pid);
  FileDescriptor const rank = open_pidfd(getpid());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid) _exit(exit_code::kSignalBase + SIGKILL);  // it is gone already
  if (!parent || !rank) return;
  pid_t const child = fork();
  if (child < 0) {
    throw ExitError(exit_code::kRetry, text("cannot start the guard process: fork: ", std::strerror(errno)));
  }
  if (child == 0) {
    if (fork() == 0) keep_rank_guard(parent, rank, group, parent_pid, files_of_daemon());
    _exit(0);
  }
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::vector<std::string> shim_command(std::string const& launcher, MeetingPoint const& point,
                                      std::string const& program, std::vector<std::string> const& options) {
  std::vector<std::string> words{launcher, kShim, point.address, point.port, join(point.slots, ","), program};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  return words;
}

Place read_place(Lookup const& lookup) {
  auto const number = [&](std::string const& name) {
    auto const value = lookup(name);
    if (!value) {
      throw ExitError(exit_code::kUsage, text(kShim, " is what ddp-launch starts through mpirun, which sets ",
                                              name, "; it is not for the command line"));
    }
    return std::atoi(value->c_str());
  };
  return {number("OMPI_COMM_WORLD_RANK"), std::max(1, number("OMPI_COMM_WORLD_SIZE")),
          number("OMPI_COMM_WORLD_LOCAL_RANK"), std::max(1, number("OMPI_COMM_WORLD_LOCAL_SIZE"))};
}

Plan plan_of_host(Options options, Machine const& machine, Place const& place, IsSet const& is_set) {
  auto const make = [&] { return make_plan(options, machine, {}, {}, is_set); };
  auto const wanted = static_cast<std::size_t>(place.local_size);
  if (options.cpus) options.cpus = place.local_size;
  Plan plan = make();
  bool const gpu_ranks = !plan.ranks.front().gpu.empty();
  if (!gpu_ranks && plan.ranks.size() != wanted) {
    options.cpus = place.local_size;
    plan = make();
  }
  if (plan.ranks.size() < wanted) {
    throw ExitError(exit_code::kNoDevice,
                    text(machine.host, ": ", wanted, " ranks are to run here, for ", plan.ranks.size(),
                         plan.ranks.size() == 1 ? " GPU" : " GPUs",
                         "; give the host that many slots, or let ranks share GPUs with --virtual N"));
  }
  if (gpu_ranks && plan.ranks.size() > wanted) {  // cores are shared among those that are there
    std::vector<std::string> gpus;
    for (std::size_t r = 0; r < wanted; r += static_cast<std::size_t>(plan.ranks_per_device)) {
      gpus.push_back(plan.ranks[r].gpu);
    }
    options.gpus = join(gpus, ",");
    plan = make();
  }
  if (place.local_size < place.size) plan.nccl_defaults.clear();  // they are for jobs of one host
  return plan;
}

Variables shim_environment(Lookup const& lookup, Place const& place, Plan const& plan,
                           MeetingPoint const& point) {
  std::size_t group = 0;
  for (int end = 0; group < point.slots.size(); ++group) {
    end += point.slots[group];
    if (place.rank < end) break;
  }
  std::string const job = lookup("DDP_JOB_ID").value_or("");
  std::string const generation = lookup("DDP_GENERATION").value_or("0");
  Variables variables{{"RANK", std::to_string(place.rank)},
                      {"WORLD_SIZE", std::to_string(place.size)},
                      {"LOCAL_RANK", std::to_string(place.local_rank)},
                      {"LOCAL_WORLD_SIZE", std::to_string(place.local_size)},
                      {"GROUP_RANK", std::to_string(group)},
                      {"GROUP_WORLD_SIZE", std::to_string(point.slots.size())},
                      {"MASTER_ADDR", point.address},
                      {"MASTER_PORT", point.port},
                      {"TORCHELASTIC_RUN_ID", job},
                      {"TORCHELASTIC_RESTART_COUNT", generation},
                      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(plan.max_restarts)},
                      {"DDP_GENERATION", generation}};
  if (auto const directory = lookup(kErrorDirectory); directory && access(directory->c_str(), W_OK) == 0) {
    variables.emplace_back(
        "DDP_ERROR_FILE",
        error_file({.control = {}, .error_dir = *directory, .master_port = {}}, Rank{place.rank}));
    std::string const flight = flight_link(*directory, Rank{place.rank});
    if (access(flight.c_str(), R_OK | W_OK) == 0) variables.emplace_back("DDP_FLIGHT", flight);
  }
  Variables const devices = device_environment(plan, plan.ranks[static_cast<std::size_t>(place.local_rank)]);
  variables.insert(variables.end(), devices.begin(), devices.end());
  return variables;
}

int run_shim(std::vector<std::string> const& words) {
  if (words.size() <= kWordsBeforeOptions) throw ExitError(exit_code::kUsage, kNotForPeople);
  Options options = parse_options(std::span(words).subspan(kWordsBeforeOptions));
  for (std::string& word : options.command) {
    if (!word.starts_with(kArgumentMark)) throw ExitError(exit_code::kUsage, kNotForPeople);
    word.erase(0, 1);
  }
  MeetingPoint point{words[0], words[1], {}};
  std::istringstream slots(words[2]);
  for (std::string each; std::getline(slots, each, ',');) point.slots.push_back(std::atoi(each.c_str()));
  std::string const& program = words[3];
  Lookup const lookup = [](std::string const& name) -> std::optional<std::string> {
    char const* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  Place const place = read_place(lookup);
  Plan const plan = plan_of_host(options, detect_machine(!options.cpus), place,
                                 [](char const* name) { return std::getenv(name) != nullptr; });
  if (place.local_rank == 0) {
    for (std::string const& warning : plan.warnings) {
      std::fprintf(stderr, "ddp-launch: warning: %s\n", warning.c_str());
    }
  }
  unsetenv("DDP_CONTROL");
  unsetenv("DDP_VIRTUAL_DEVICES");
  for (auto const& [name, value] : shim_environment(lookup, place, plan, point)) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  unsetenv(kErrorDirectory);
  unsetenv(kMpirunFiles);
  start_rank_guard();
  // A CPU that is no longer allowed is the kernel's affair: the rank runs where it may.
  auto const cpus = cpu_mask(plan.ranks[static_cast<std::size_t>(place.local_rank)].cpus);
  if (!cpus.empty()) syscall(SYS_sched_setaffinity, 0, cpus.size() * sizeof cpus[0], cpus.data());
  std::vector<char*> arguments;
  for (std::string& word : options.command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  int const problem = errno;
  std::fprintf(stderr, "ddp-launch: %s could not be started: %s\n", program.c_str(), std::strerror(problem));
  return exec_failure_code(problem);
}

}  // namespace ddp::launcher
