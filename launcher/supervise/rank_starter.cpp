#include "launcher/supervise/rank_starter.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "ddp/core/error.hpp"
#include "launcher/mpirun/mpirun_settings.hpp"
#include "launcher/process/environment.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/process/line_buffering.hpp"

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
  return chosen ? std::to_string(ntohs(address.sin_port)) : "29500";  // torchrun's default
}

Pipe make_nonblocking_pipe() {
  Pipe pipe = make_pipe();
  fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

}  // namespace

RankStarter::RankStarter(Plan const& plan, InheritedState const& inherited, std::string control,
                         RankProcesses const& processes)
    : plan_(plan),
      inherited_(inherited),
      control_(std::move(control)),
      processes_(processes),
      environment_(own_environment()),
      master_port_(free_port()),
      exec_failures_(make_nonblocking_pipe()),
      null_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  if (!null_) throw_errno("opening /dev/null", errno);
}

StartedRank RankStarter::start(PlannedRank const& rank, std::string const& flight) const {
  Pipe out = make_nonblocking_pipe();
  Pipe err = make_nonblocking_pipe();
  JobFacts const facts{control_, processes_.directory(), master_port_, flight, place_of(out.write_end.get())};
  auto variables = rank_environment(plan_, rank, facts);
  if (plan_.mpi_ranks) {  // what mpirun keeps in the directory goes with it, also if killed
    for (auto const& setting : mpirun_settings(environment_, processes_.directory()))
      variables.push_back(setting);
    if (plan_.all_here) {
      for (auto const& setting : loopback_settings(environment_, plan_.loopback))
        variables.push_back(setting);
    }
  }
  SpawnRequest request;
  request.rank = rank.rank;
  request.program = plan_.program;
  request.arguments = plan_.command;
  request.environment = merge_environment(environment_, variables);
  request.cpus = rank.cpus;
  request.stdin_fd = rank.rank == 0 && stdin_is_the_jobs() ? STDIN_FILENO : null_.get();
  request.stdout_fd = out.write_end.get();
  request.stderr_fd = err.write_end.get();
  request.failure_fd = exec_failures_.write_end.get();
  request.guard_fd = processes_.guard_fd();
  request.inherited = inherited_;
  return {spawn(request), std::move(out.read_end), std::move(err.read_end)};
}

}  // namespace ddp::launcher
