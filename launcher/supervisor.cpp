#include "launcher/supervisor.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "launcher/exit_code.hpp"
#include "launcher/process_tree.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kPieceOfOutput = std::size_t{64} << 10;

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

FileDescriptor open_log(Console& console, std::string const& path) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) console.say(text("warning: cannot write ", path, ": ", std::strerror(errno)));
  return file;
}

}  // namespace

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int const signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

Supervisor::Supervisor(Plan const& plan, Options const& options, InheritedState const& inherited,
                       Console& console)
    : plan_(plan), options_(options), inherited_(inherited), console_(console) {
  ControlServer::Options server_options;
  server_options.size = static_cast<int>(plan.ranks.size());
  server_ = std::make_unique<ControlServer>(std::move(server_options));
  control_directory_ = std::filesystem::path(server_->path()).parent_path();
  guard_ = std::make_unique<Guard>(control_directory_);
  own_children_.insert(guard_->pid());
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // what ranks leave behind becomes a child of this process

  sigset_t const signals = watched_signals();
  signals_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!signals_ || !epoll_) throw_errno("making the event loop", errno);
  watch(EPOLL_CTL_ADD, server_->poll_fd(), Source::control, 0, EPOLLIN);
  watch(EPOLL_CTL_ADD, signals_.get(), Source::signals, 0, EPOLLIN);

  job_.host = plan.host;
  job_.program = plan.program;
  job_.failure_grace = options.failure_grace;
}

Supervisor::~Supervisor() { clean_up(); }

int Supervisor::run() {
  start_ranks();
  while (still_running() > 0 && (!give_up_at_ || Clock::now() < *give_up_at_)) wait_and_dispatch();
  clean_up();
  console_.finish();
  if (std::string const words = report(job_); !words.empty()) console_.print(words);
  console_.finish();
  return job_exit_code(job_);
}

void Supervisor::start_ranks() {
  FileDescriptor const null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw_errno("opening /dev/null", errno);
  Pipe failures = make_pipe();
  exec_failures_ = std::move(failures.read_end);
  watch(EPOLL_CTL_ADD, exec_failures_.get(), Source::exec_failures, 0, EPOLLIN);
  std::string const master_port = free_port();
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
  FileDescriptor out_file;
  FileDescriptor err_file;
  if (plan_.log_dir) {
    outcome.out_file = text(*plan_.log_dir, "/rank", planned.rank, ".out");
    outcome.err_file = text(*plan_.log_dir, "/rank", planned.rank, ".err");
    out_file = open_log(console_, outcome.out_file);
    err_file = open_log(console_, outcome.err_file);
  }
  Pipe out = make_pipe();
  Pipe err = make_pipe();

  SpawnRequest request;
  request.rank = planned.rank;
  request.program = plan_.program;
  request.arguments = plan_.command;
  std::vector<std::string> inherited;
  for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
  request.environment = merge_environment(
      inherited, rank_environment(plan_, planned, {server_->path(), control_directory_, master_port}));
  request.stdin_fd = planned.rank == 0 ? STDIN_FILENO : null_fd;
  request.stdout_fd = out.write_end.get();
  request.stderr_fd = err.write_end.get();
  request.failure_fd = failure_fd;
  request.inherited = inherited_;

  Running running;
  running.child = spawn(request);
  guard_->watch(running.child.pid);
  own_children_.insert(running.child.pid);
  outcome.pid = running.child.pid;
  running.out = std::make_unique<RankStream>(planned.rank, Stream::out, std::move(out.read_end),
                                             std::move(out_file), outcome.out_file);
  running.err = std::make_unique<RankStream>(planned.rank, Stream::err, std::move(err.read_end),
                                             std::move(err_file), outcome.err_file);
  ranks_.push_back(std::move(running));
  job_.ranks.push_back(std::move(outcome));
  watch(EPOLL_CTL_ADD, ranks_[index].child.pidfd.get(), Source::rank_end, index, EPOLLIN);
  watch(EPOLL_CTL_ADD, ranks_[index].out->fd(), Source::out, index, EPOLLIN);
  watch(EPOLL_CTL_ADD, ranks_[index].err->fd(), Source::err, index, EPOLLIN);
}

void Supervisor::watch(int operation, int fd, Source source, std::size_t index, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (static_cast<std::uint64_t>(source) << 32) | index;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) throw_errno("watching a descriptor", errno);
}

int Supervisor::time_to_next_deadline() const {
  std::optional<Clock::time_point> next = kill_at_;
  if (give_up_at_ && (!next || *give_up_at_ < *next)) next = give_up_at_;
  if (!next) return -1;  // the ranks may take as long as they like
  auto const left = std::chrono::ceil<milliseconds>(*next - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 3600000));
}

void Supervisor::wait_and_dispatch() {
  std::array<epoll_event, 64> events{};
  int const count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), time_to_next_deadline());
  if (count < 0 && errno != EINTR) throw_errno("waiting for events", errno);
  // What ranks say comes before their ends: whoever is judged has been heard.
  auto const end = events.begin() + std::max(count, 0);
  std::stable_sort(events.begin(), end, [](epoll_event const& a, epoll_event const& b) {
    auto const is_end = [](epoll_event const& event) {
      return static_cast<Source>(event.data.u64 >> 32) == Source::rank_end;
    };
    return is_end(a) < is_end(b);
  });
  for (auto event = events.begin(); event != end; ++event) {
    handle(static_cast<Source>(event->data.u64 >> 32), event->data.u64 & 0xffffffffU);
  }
  apply_deadlines();
  update_flow();
}

void Supervisor::handle(Source source, std::size_t index) {
  switch (source) {
    case Source::control:
      handle_control();
      break;
    case Source::signals:
      handle_signals();
      break;
    case Source::exec_failures:
      handle_exec_failures();
      break;
    case Source::rank_end:
      note_end(index);
      break;
    case Source::out:
    case Source::err:
      forward_output(source, index);
      break;
    case Source::console_out:
      console_.sink(Stream::out).flush();
      break;
    case Source::console_err:
      console_.sink(Stream::err).flush();
      break;
  }
}

void Supervisor::handle_control() {
  using Kind = ControlServer::Event::Kind;
  constexpr int kMostRounds = 64;  // a flood must not keep the loop from everything else
  for (int round = 0; round < kMostRounds; ++round) {
    pollfd waiting{server_->poll_fd(), POLLIN, 0};
    if (poll(&waiting, 1, 0) <= 0) return;
    for (ControlServer::Event const& event : server_->process()) {
      if (event.rank.index() >= job_.ranks.size()) continue;
      RankOutcome& outcome = job_.ranks[event.rank.index()];
      switch (event.kind) {
        case Kind::joined:
          outcome.joined = true;
          break;
        case Kind::left:
          outcome.left = true;
          break;
        case Kind::disconnected:
          break;  // its process tells whether that matters
        case Kind::progress:
          outcome.progress = event.text;
          break;
        case Kind::error:
          outcome.error = ReportedError{std::string(to_string(event.code)), event.text};
          if (!is_consequence(outcome) && !outcome.ended) outcome.first_trouble = Clock::now();
          break;
      }
    }
  }
}

void Supervisor::handle_signals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    int const signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap_adopted();
    } else {
      forward_signal(signal);
    }
  }
}

void Supervisor::handle_exec_failures() {
  ExecFailure failure{};
  ssize_t count = 0;
  while ((count = read(exec_failures_.get(), &failure, sizeof failure)) ==
         static_cast<ssize_t>(sizeof failure)) {
    job_.ranks[static_cast<std::size_t>(failure.rank)].exec_error = failure.error_number;
    failure_seen_ = true;
    kill_ranks();
  }
  if (count == 0) {  // every rank has become the program
    watch(EPOLL_CTL_DEL, exec_failures_.get(), Source::exec_failures, 0, 0);
    exec_failures_.reset();
  }
}

void Supervisor::forward_output(Source source, std::size_t index) {
  auto& stream = source == Source::out ? ranks_[index].out : ranks_[index].err;
  if (!stream->open() || stream->forward(console_, kPieceOfOutput)) return;
  watch(EPOLL_CTL_DEL, stream->fd(), source, index, 0);
  stream->finish(console_);
}

/// Waits for room where the console's reader is slow, and holds the ranks' output back meanwhile.
void Supervisor::update_flow() {
  for (Stream const which : {Stream::out, Stream::err}) {
    Sink& sink = console_.sink(which);
    bool const wanted = sink.pending() > 0;
    bool& watched = console_waits_[which == Stream::out ? 0 : 1];
    if (wanted == watched) continue;
    Source const source = which == Stream::out ? Source::console_out : Source::console_err;
    watch(wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, sink.fd(), source, 0, EPOLLOUT);
    watched = wanted;
  }
  bool const read_now = !console_.congested();
  if (read_now == reading_) return;
  reading_ = read_now;
  int const operation =
      reading_ ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;  // without events a hang-up would still ring
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].out->open()) watch(operation, ranks_[i].out->fd(), Source::out, i, EPOLLIN);
    if (ranks_[i].err->open()) watch(operation, ranks_[i].err->fd(), Source::err, i, EPOLLIN);
  }
}

}  // namespace ddp::launcher
