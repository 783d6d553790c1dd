#include "launcher/supervise/supervisor.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "ddp/core/error.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/process_tree.hpp"
#include "launcher/supervise/job_control.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kPieceOfOutput = std::size_t{64} << 10;

std::unique_ptr<ControlServer> make_control_server(int size, std::string const& directory) {
  ControlServer::Options options;
  options.size = size;
  options.parent_directory = directory;
  try {
    return std::make_unique<ControlServer>(std::move(options));
  } catch (Error const& error) {
    throw ExitError(exit_code::kCannotCreate, error.what());
  }
}

}  // namespace

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int const signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

Supervisor::Supervisor(Plan const& plan, Options const& options, InheritedState const& inherited,
                       Console& console, JobFiles& files)
    : plan_(plan), options_(options), inherited_(inherited), console_(console), files_(files) {
  // The guard knows the directory before it exists: there is no moment at which a killed launcher leaves it.
  guard_ = std::make_unique<Guard>(directory_.path());
  directory_.make();
  server_ = make_control_server(static_cast<int>(plan.ranks.size()), directory_.path());
  own_children_.insert(guard_->pid());
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // what ranks leave behind becomes a child of this process

  sigset_t signals = watched_signals();
  sigaddset(&signals, SIGTSTP);
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

JobOutcome const& Supervisor::run_ranks() {
  HeldStopKey const held;
  start_ranks();
  while (still_running() > 0 && (!give_up_at_ || Clock::now() < *give_up_at_)) wait_and_dispatch();
  clean_up();
  console_.end_repeats();
  if (failure_seen_) read_flights();
  return job_;
}

int Supervisor::conclude(std::string const& last_words) {
  stop_hearing_children();
  std::string words = report(job_);
  if (!last_words.empty()) words += "[ddp-launch] " + last_words + "\n";
  // The report is the last word, but a slow reader of stdout must not keep it from stderr.
  bool const report_first = console_.only_stdout_waits();
  if (report_first && !words.empty()) console_.print(words);
  console_.finish(signals_.get());
  if (!report_first && !words.empty()) {
    console_.print(words);
    console_.finish(signals_.get());
  }
  return job_exit_code(job_);
}

/// From now on the signal descriptor is readable only when somebody wants the end.
void Supervisor::stop_hearing_children() {
  sigset_t signals = watched_signals();
  sigdelset(&signals, SIGCHLD);
  signalfd(signals_.get(), &signals, SFD_CLOEXEC | SFD_NONBLOCK);
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
  if (looks_for_stragglers() && (!next || next_look_ < *next)) next = next_look_;
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
  warn_of_stragglers();
  oom_looks_.look(Clock::now());
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
      console_.sink(OutputStream::out).flush();
      break;
    case Source::console_err:
      console_.sink(OutputStream::err).flush();
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
          outcome.member = event.pid;
          files_.events.rank_joined(outcome);
          break;
        case Kind::left:
          outcome.left = true;
          break;
        case Kind::disconnected:
          break;  // its process tells whether that matters
        case Kind::progress:
          outcome.progress = event.text;
          files_.events.step(outcome);
          break;
        case Kind::error:
          outcome.error = ReportedError{std::string(to_string(event.code)), event.text};
          note_stopped_ranks();
          if (!is_consequence(outcome) && !outcome.ended) outcome.first_trouble = Clock::now();
          break;
      }
    }
  }
}

void Supervisor::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    int const signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap_adopted();
      renew_guard();
    } else if (signal == SIGTSTP) {
      stop_and_go_on();
    } else {
      forward_signal(signal);
    }
  }
}

void Supervisor::handle_exec_failures() {
  ExecFailure failure{};
  ssize_t count = 0;
  while ((count = ::read(exec_failures_.get(), &failure, sizeof failure)) ==
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
  bool const goes_on = !stream->open() || stream->forward(console_, kPieceOfOutput);
  if (stream->failure_told()) note_failure_under_mpirun();
  if (goes_on) return;
  watch(EPOLL_CTL_DEL, stream->fd(), source, index, 0);
  stream->finish(console_);
}

/// Waits for room where the console's reader is slow, and holds the ranks' output back meanwhile.
void Supervisor::update_flow() {
  for (OutputStream const which : {OutputStream::out, OutputStream::err}) {
    if (which == OutputStream::err && console_.one_place()) break;
    Sink& sink = console_.sink(which);
    bool const wanted = sink.pending() > 0;
    bool& watched = console_waits_[which == OutputStream::out ? 0 : 1];
    if (wanted == watched) continue;
    Source const source = which == OutputStream::out ? Source::console_out : Source::console_err;
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
