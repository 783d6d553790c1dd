#include "launcher/supervise/rank_starter.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "bootstrap/server/tcp.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/process/environment.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/process/line_buffering.hpp"
#include "launcher/process/terminal.hpp"

namespace ddp::launcher {
namespace {

std::string free_port() try {
  return text(tcp::port_of(tcp::listen_here("localhost", 0)));
} catch (Error const&) {
  return "29500";  // torchrun's default
}

/// A terminal for a rank that is to have one, if one can be made; otherwise a pipe. Its read end does not
/// block.
Pipe make_stream(Plan const& plan, Rank rank, bool is_err) {
  std::optional<Pipe> stream;
  auto const window = plan.terminal.has(rank, is_err) ? window_of_this_process() : std::nullopt;
  if (window) stream = make_terminal(behind(plan.taken_columns, *window));
  if (!stream) stream = make_pipe();
  fcntl(stream->read_end.get(), F_SETFL, O_NONBLOCK);
  return std::move(*stream);
}

}  // namespace

StartedRanks start_ranks(Plan const& plan, rlimit const& open_files, std::string const& control,
                         FlightRecordings const& flights, RankProcesses& processes) {
  auto const environment = own_environment();
  std::string const master_port = free_port();
  FileDescriptor const null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw_errno("opening /dev/null", errno);
  Pipe exec_failures = make_pipe();
  fcntl(exec_failures.read_end.get(), F_SETFL, O_NONBLOCK);
  StartedRanks started{{}, std::move(exec_failures.read_end)};
  for (PlannedRank const& rank : plan.ranks) {
    Pipe out = make_stream(plan, rank.rank, false);
    Pipe err = make_stream(plan, rank.rank, true);
    auto variables = rank_environment(plan, rank,
                                      {control, processes.directory(), master_port, flights.path(rank.rank),
                                       place_of(out.write_end.get())});
    if (plan.mpi_ranks) {  // what mpirun keeps in the directory is removed with it, even if mpirun is killed
      append(variables, mpirun_settings(environment, processes.directory()));
      if (plan.all_here) append(variables, loopback_settings(environment, plan.loopback));
    }
    processes.add(spawn({.rank = rank.rank,
                         .program = plan.program,
                         .arguments = plan.command,
                         .environment = merge_environment(environment, variables),
                         .cpus = rank.cpus,
                         .stdin_fd = rank.rank == 0 && stdin_is_the_jobs() ? STDIN_FILENO : null.get(),
                         .stdout_fd = out.write_end.get(),
                         .stderr_fd = err.write_end.get(),
                         .failure_fd = exec_failures.write_end.get(),
                         .guard_fd = processes.guard_fd(),
                         .open_files = open_files}));
    started.streams.push_back({std::move(out.read_end), std::move(err.read_end)});
  }
  return started;
}

}  // namespace ddp::launcher
