// The supervisor's first part: starting the ranks.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_shim.hpp"
#include "launcher/mpirun/mpirun_settings.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/line_buffering.hpp"
#include "launcher/supervise/job_control.hpp"
#include "launcher/supervise/supervisor.hpp"

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

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

Pipe make_pipe() {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw ExitError(exit_code::kRetry, text("cannot make a pipe: ", std::strerror(errno)));
  }
  Pipe pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

}  // namespace

void Supervisor::start_ranks() {
  FileDescriptor const null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw_errno("opening /dev/null", errno);
  Pipe failures = make_pipe();
  exec_failures_ = std::move(failures.read_end);
  watch(EPOLL_CTL_ADD, exec_failures_.get(), Source::exec_failures, 0, EPOLLIN);
  std::string const master_port = free_port();
  flights_.resize(static_cast<std::size_t>(plan_.mpi_ranks.value_or(static_cast<int>(plan_.ranks.size()))));
  if (plan_.mpi_ranks) {
    for (Rank const rank : all_ranks(*plan_.mpi_ranks)) {  // of this host's they are found; others have none
      std::string const memory = flights_[rank.index()].path();
      std::string const link = flight_link(directory_.path(), rank);
      if (!memory.empty() && symlink(memory.c_str(), link.c_str()) != 0) flights_[rank.index()] = {};
    }
  }
  oom_looks_.look(Clock::now());
  job_.ranks.reserve(plan_.ranks.size());
  ranks_.reserve(plan_.ranks.size());
  for (PlannedRank const& planned : plan_.ranks) {
    start_rank(planned, null.get(), failures.write_end.get(), master_port);
  }
}

void Supervisor::start_rank(PlannedRank const& planned, int null_fd, int failure_fd,
                            std::string const& master_port) {
  std::size_t const index = ranks_.size();
  RankOutcome outcome;
  outcome.rank = planned.rank;
  outcome.device = planned.device;
  outcome.gpu = planned.gpu;
  if (plan_.mpi_ranks) outcome.title = "mpirun";
  if (plan_.log_dir) {
    std::string const name = plan_.mpi_ranks ? "rank*" : text("rank", planned.rank);
    outcome.out_file = text(*plan_.log_dir, "/", name, ".out");
    outcome.err_file = text(*plan_.log_dir, "/", name, ".err");
  }
  Pipe out = make_pipe();
  Pipe err = make_pipe();

  SpawnRequest request;
  request.rank = planned.rank;
  request.program = plan_.program;
  request.arguments = plan_.command;
  std::vector<std::string> inherited;
  for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
  JobFacts const facts{server_->path(), directory_.path(), master_port, flights_[index].path(),
                       place_of(out.write_end.get())};
  auto variables = rank_environment(plan_, planned, facts);
  if (plan_.mpi_ranks) {  // what mpirun keeps in the directory goes with it, also if killed
    for (auto const& setting : mpirun_settings(inherited, directory_.path())) variables.push_back(setting);
    if (plan_.all_here) {
      for (auto const& setting : loopback_settings(inherited, plan_.loopback)) variables.push_back(setting);
    }
  }
  request.environment = merge_environment(inherited, variables);
  request.cpus = planned.cpus;
  request.stdin_fd = planned.rank == 0 && stdin_is_the_jobs() ? STDIN_FILENO : null_fd;
  request.stdout_fd = out.write_end.get();
  request.stderr_fd = err.write_end.get();
  request.failure_fd = failure_fd;
  request.guard_fd = guard_->fd();
  request.inherited = inherited_;

  Running running;
  running.child = spawn(request);
  own_children_.insert(running.child.pid);
  outcome.pid = running.child.pid;
  running.out = stream_of(planned.rank, OutputStream::out, std::move(out.read_end));
  running.err = stream_of(planned.rank, OutputStream::err, std::move(err.read_end));
  ranks_.push_back(std::move(running));
  job_.ranks.push_back(std::move(outcome));
  watch(EPOLL_CTL_ADD, ranks_[index].child.pidfd.get(), Source::rank_end, index, EPOLLIN);
  watch(EPOLL_CTL_ADD, ranks_[index].out->fd(), Source::out, index, EPOLLIN);
  watch(EPOLL_CTL_ADD, ranks_[index].err->fd(), Source::err, index, EPOLLIN);
  files_.events.rank_up(job_.ranks[index]);
}

/// A rank's, or mpirun's own.
LogFile Supervisor::open_log(std::optional<Rank> of, OutputStream stream, bool append) {
  if (!files_.logs) return {};
  std::string const name = of ? text("rank", *of) : std::string("mpirun");
  return {console_, files_.logs, name + (stream == OutputStream::out ? ".out" : ".err"), append};
}

std::unique_ptr<RankStream> Supervisor::stream_of(Rank rank, OutputStream stream, FileDescriptor pipe) {
  bool const restarted = plan_.generation > 0;  // a rank goes on behind what the one before it wrote
  if (!plan_.mpi_ranks) {
    return std::make_unique<RankStream>(rank, stream, std::move(pipe), open_log(rank, stream, restarted),
                                        options_.timestamps);
  }
  static_cast<void>(open_log(std::nullopt, stream, restarted));  // nothing of an older job stays there
  for (Rank const each : all_ranks(*plan_.mpi_ranks)) static_cast<void>(open_log(each, stream, restarted));
  return std::make_unique<RankStream>(
      *plan_.mpi_ranks, stream, std::move(pipe),
      [this, stream](std::optional<Rank> of) { return open_log(of, stream, true); }, options_.timestamps);
}

}  // namespace ddp::launcher
