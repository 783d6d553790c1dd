#include "launcher/supervise/rank_starter.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

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

RankStarter::RankStarter(Plan const& plan, rlimit const& open_files, std::string control,
                         FlightRecordings const& flights, RankProcesses& processes)
    : plan_(plan),
      open_files_(open_files),
      control_(std::move(control)),
      flights_(flights),
      processes_(processes),
      environment_(own_environment()),
      master_port_(free_port()),
      null_(open("/dev/null", O_RDWR | O_CLOEXEC)) {
  if (!null_) throw_errno("opening /dev/null", errno);
}

StartedRanks RankStarter::start_all() {
  Pipe exec_failures = make_pipe();
  fcntl(exec_failures.read_end.get(), F_SETFL, O_NONBLOCK);
  StartedRanks started{{}, std::move(exec_failures.read_end)};
  for (PlannedRank const& rank : plan_.ranks) {
    auto [child, streams] = start(rank, 0, exec_failures.write_end.get());
    processes_.add(std::move(child));
    started.streams.push_back(std::move(streams));
  }
  return started;
}

RankStreams RankStarter::replace(std::size_t index, int replacement) {
  auto [child, streams] = start(plan_.ranks[index], replacement, null_.get());
  processes_.replace(index, std::move(child));
  return std::move(streams);
}

std::pair<Child, RankStreams> RankStarter::start(PlannedRank const& rank, int replacement, int failure_fd) {
  Pipe out = make_stream(plan_, rank.rank, false);
  Pipe err = make_stream(plan_, rank.rank, true);
  auto variables = rank_environment(plan_, rank,
                                    {control_, processes_.directory(), master_port_, flights_.path(rank.rank),
                                     place_of(out.write_end.get()), replacement});
  if (plan_.mpi_ranks) {  // what mpirun keeps in the directory is removed with it, even if mpirun is killed
    append(variables, mpirun_settings(environment_, processes_.directory()));
    if (plan_.all_here) append(variables, loopback_settings(environment_, plan_.loopback));
  }
  bool const has_stdin = rank.rank == 0 && replacement == 0 && stdin_is_the_jobs();
  Child child = spawn({.rank = rank.rank,
                       .program = plan_.program,
                       .arguments = plan_.command,
                       .environment = merge_environment(environment_, variables),
                       .cpus = rank.cpus,
                       .stdin_fd = has_stdin ? STDIN_FILENO : null_.get(),
                       .stdout_fd = out.write_end.get(),
                       .stderr_fd = err.write_end.get(),
                       .failure_fd = failure_fd,
                       .guard_fd = processes_.guard_fd(),
                       .open_files = open_files_});
  return {std::move(child), RankStreams{std::move(out.read_end), std::move(err.read_end)}};
}

}  // namespace ddp::launcher
