#include "launcher/supervise/rank_starter.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/process/environment.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/process/line_buffering.hpp"
#include "launcher/process/terminal.hpp"

namespace ddp::launcher {
namespace {

std::string free_port() {
  FileDescriptor const socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bool const chosen = socket && bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
  return chosen ? text(ntohs(address.sin_port)) : "29500";  // torchrun's default
}

Pipe make_nonblocking_pipe() {
  Pipe pipe = make_pipe();
  fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

}  // namespace

RankStarter::RankStarter(Plan const& plan, rlimit const& open_files, std::string control,
                         RankProcesses const& processes)
    : plan_(plan),
      open_files_(open_files),
      control_(std::move(control)),
      processes_(processes),
      environment_(own_environment()),
      master_port_(free_port()),
      exec_failures_(make_nonblocking_pipe()),
      null_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  if (!null_) throw_errno("opening /dev/null", errno);
}

/// A terminal for a rank that is to have one, if one can be made; otherwise a pipe. Its read end does not
/// block.
Pipe RankStarter::make_stream(Rank rank, bool is_err) const {
  std::optional<Pipe> stream;
  auto const window = plan_.terminal.has(rank, is_err) ? window_of_this_process() : std::nullopt;
  if (window) stream = make_terminal(behind(plan_.taken_columns, *window));
  if (!stream) stream = make_pipe();
  fcntl(stream->read_end.get(), F_SETFL, O_NONBLOCK);
  return std::move(*stream);
}

StartedRank RankStarter::start(PlannedRank const& rank, std::string const& flight) const {
  Pipe out = make_stream(rank.rank, false);
  Pipe err = make_stream(rank.rank, true);
  JobFacts const facts{control_, processes_.directory(), master_port_, flight, place_of(out.write_end.get())};
  auto variables = rank_environment(plan_, rank, facts);
  if (plan_.mpi_ranks) {  // what mpirun keeps in the directory is removed with it, even if mpirun is killed
    append(variables, mpirun_settings(environment_, processes_.directory()));
    if (plan_.all_here) append(variables, loopback_settings(environment_, plan_.loopback));
  }
  Child child = spawn({.rank = rank.rank,
                       .program = plan_.program,
                       .arguments = plan_.command,
                       .environment = merge_environment(environment_, variables),
                       .cpus = rank.cpus,
                       .stdin_fd = rank.rank == 0 && stdin_is_the_jobs() ? STDIN_FILENO : null_.get(),
                       .stdout_fd = out.write_end.get(),
                       .stderr_fd = err.write_end.get(),
                       .failure_fd = exec_failures_.write_end.get(),
                       .guard_fd = processes_.guard_fd(),
                       .open_files = open_files_});
  return {std::move(child), std::move(out.read_end), std::move(err.read_end)};
}

}  // namespace ddp::launcher
