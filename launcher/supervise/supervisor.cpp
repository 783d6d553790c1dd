#include "launcher/supervise/supervisor.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "core/parse_number.hpp"
#include "ddp/core/error.hpp"
#include "launcher/process/environment.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/terminal.hpp"

namespace ddp::launcher {
namespace {

// mpirun takes signals that arrive together by number, SIGCONT before SIGTSTP. So it gets this long for each.
constexpr std::chrono::milliseconds kUntilMpirunTookASignal{300};

constexpr std::chrono::milliseconds kBetweenLooksAtStopped{500};
// For guards on other hosts to end their ranks and tell, when mpirun has ended.
constexpr std::chrono::milliseconds kForGuards{2000};

/// The timeout of the ranks: DDP_TIMEOUT, or a World's default. Ranks refuse a DDP_TIMEOUT that is no number.
Deadline::Duration timeout_of_ranks() {
  auto const given = parse_number<double>(environment_variable("DDP_TIMEOUT").value_or(""));
  bool const known = given && *given > 0 && *given < 1e9;
  return std::chrono::milliseconds(known ? static_cast<std::int64_t>(*given * 1000.0) : 600'000);
}

ControlServer make_control_server(Plan const& plan, std::string const& directory, Invitation& invitation) {
  try {
    FileDescriptor network;
    if (plan.mpi_ranks) invitation = Invitation::prepare("ddp-launch", plan.all_here, network);
    return ControlServer({.size = plan.world_size(),
                          .path = directory + "/control",
                          .generation = plan.generation,
                          .secret = invitation.secret,
                          .min_ranks = plan.min_ranks.value_or(0)},
                         std::move(network));
  } catch (Error const& error) {
    throw ExitError(exit_code::kCannotCreate, error.what());
  }
}

}  // namespace

Supervisor::Supervisor(Plan const& plan, Options const& options, rlimit const& open_files, Console& console,
                       JobFiles& files)
    : plan_(plan),
      options_(options),
      open_files_(open_files),
      console_(console),
      files_(files),
      server_(make_control_server(plan, processes_.directory(), invitation_)),
      outcomes_(plan, processes_.directory(), files.events),
      termination_(options, plan.mpi_ranks.has_value(), console,
                   [this](int signal) { processes_.send(signal); }),
      flights_(plan.world_size()),
      progress_(plan, flights_, outcomes_, console),
      output_(plan, options, console, files.logs, loop_),
      replacements_(plan.replacements) {
  sigset_t signals = watched_signals();
  for (int const of_terminal : {SIGTSTP, SIGWINCH}) sigaddset(&signals, of_terminal);
  signals_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw_errno("making the event loop", errno);
  loop_.watch(server_.poll_fd(), EPOLLIN, [this] { hear_ranks(); });
  loop_.watch(signals_.get(), EPOLLIN, [this] { take_signals(); });
}

JobOutcome Supervisor::run() {
  start_ranks();
  while ((processes_.running() > 0 && !termination_.given_up(Clock::now())) || guards_may_tell()) {
    loop_.wait(next_deadline());
    auto const now = Clock::now();
    if (auto const first = replacements_.awaited()) replacements_.note_steps(flights_.steps(*first), now);
    start_due_replacements();
    termination_.enforce(outcomes_.ranks(), now);
    progress_.look(all_is_well(), now);
    if (may_stand_still() && now >= next_look_at_stopped_) look_for_standstill(now);
    outcomes_.look_for_oom_kills(now);
    output_.update_flow();
  }
  end_ranks();
  if (plan_.mpi_ranks) {
    bool const stopped_by_signal = termination_.signal() != 0 && !termination_.failed_before_signal();
    outcomes_.no_more_is_heard(stopped_by_signal, Clock::now());
    judge_end(outcomes_.place_of(0), 0);
  }
  for (std::size_t i = 0; i < outcomes_.ranks().size(); ++i) {
    outcomes_.note_files(i, output_.out(i), output_.err(i));
    outcomes_.last_words(i, output_.err(i));
  }
  console_.end_repeats();
  JobOutcome job{plan_.host, plan_.program, outcomes_.ranks(), termination_.signal(),
                 termination_.failed_before_signal()};
  job.min_ranks = plan_.min_ranks;
  job.lost = outcomes_.lost();
  if (termination_.failure_seen()) {
    flights_.add_to(job, files_.logs, console_);
  }
  return job;
}

void Supervisor::start_ranks() {
  invitation_.path = server_.path();
  if (plan_.mpi_ranks) flights_.link_into(processes_.directory());
  outcomes_.look_for_oom_kills(Clock::now());
  starter_.emplace(plan_, open_files_, plan_.mpi_ranks ? invitation_.text() : server_.path(), flights_,
                   processes_);
  auto started = starter_->start_all();
  exec_failures_ = std::move(started.exec_failures);
  loop_.watch(exec_failures_.get(), EPOLLIN, [this] { take_exec_failures(); });
  for (std::size_t index = 0; index < plan_.ranks.size(); ++index) {
    PlannedRank const& planned = plan_.ranks[index];
    output_.add(planned.rank, std::move(started.streams[index].out), std::move(started.streams[index].err));
    watch_end(index);
    outcomes_.started(planned, processes_.pid(index));
  }
}

/// Handlers of ends come last, so that all that a rank has said is known when its end is judged.
void Supervisor::watch_end(std::size_t index) {
  loop_.watch(
      processes_.pidfd(index), EPOLLIN, [this, index] { note_end(index); }, EventLoop::Turn::last);
}

/// One that cannot be started is none: the others go on.
void Supervisor::start_due_replacements() {
  if (termination_.begun() || outcomes_.members() == 0 || outcomes_.is_ending())
    return replacements_.give_up();
  while (auto const index = replacements_.take_due(Clock::now())) try {
      PlannedRank const& planned = plan_.ranks[*index];
      flights_.renew(planned.rank);
      server_.let_come_back(planned.rank);
      RankStreams streams = starter_->replace(*index, outcomes_.ranks()[*index].replacement + 1);
      output_.replace(*index, planned.rank, std::move(streams.out), std::move(streams.err));
      watch_end(*index);
      outcomes_.replaced(planned, processes_.pid(*index));
      console_.say(replacement_line(outcomes_.ranks()[*index], replacements_.used(), replacements_.most()));
    } catch (Error const& error) {
      console_.say(text("warning: ", error.what()));
    } catch (ExitError const& error) {
      console_.say(text("warning: ", error.what()));
    }
}

/// Those that take part have ended.
void Supervisor::end_newcomers() {
  if (termination_.begun() || outcomes_.members() > 0) return;
  for (RankOutcome const& each : outcomes_.ranks()) {
    if (each.ended || !each.newcomer) continue;
    outcomes_.not_needed(each.rank.index());
    processes_.send(each.rank.index(), SIGKILL);
  }
}

/// Whether all ranks that take part run: otherwise a missing rank is not late, but gone or ending.
bool Supervisor::all_is_well() const {
  return !options_.quiet && !termination_.begun() && outcomes_.members() == outcomes_.membership().size();
}

/// Whether a rank behind the mpirun that has ended may still be heard of.
bool Supervisor::guards_may_tell() const {
  bool const started = outcomes_.heard_of_ranks() || outcomes_.ranks().back().signal != 0;
  return mpirun_ended_ && started && outcomes_.running() > 0 && Clock::now() < *mpirun_ended_ + kForGuards;
}

Supervisor::Clock::time_point Supervisor::next_deadline() const {
  if (mpirun_ended_) return *mpirun_ended_ + kForGuards;
  auto next = std::min(progress_.next(), termination_.deadline().value_or(Clock::time_point::max()));
  next = std::min(next, replacements_.next().value_or(Clock::time_point::max()));
  return may_stand_still() ? std::min(next, next_look_at_stopped_) : next;
}

void Supervisor::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    int const signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      processes_.reap_others();
    } else if (signal == SIGTSTP) {
      stop_and_go_on();
    } else if (signal == SIGWINCH) {
      pass_on_window();
    } else {
      termination_.pass_on(signal, Clock::now());
    }
  }
}

/// The kernel tells no rank of the new size, since no rank's session has that terminal.
void Supervisor::pass_on_window() {
  auto const window = window_of_this_process();
  if (!window || plan_.mpi_ranks) return;
  output_.resize(behind(plan_.taken_columns, *window));
  processes_.send(SIGWINCH);
}

/// Ctrl-Z reaches the launcher only: the ranks have sessions of their own. They stop before it and go on
/// after it. Meanwhile no deadline runs, neither here nor in the ranks (PausingDeadline). mpirun itself does
/// not stop: it stops the ranks of all hosts.
void Supervisor::stop_and_go_on() {
  processes_.send(plan_.mpi_ranks ? SIGTSTP : SIGSTOP);
  auto const begin = Clock::now();
  stop_this_process();
  if (plan_.mpi_ranks) std::this_thread::sleep_until(begin + kUntilMpirunTookASignal);
  auto const now = Clock::now();
  termination_.leave_out(now - begin);
  progress_.leave_out(now);
  stands_since_.reset();
  processes_.send(SIGCONT);
}

void Supervisor::take_exec_failures() {
  ExecFailure failure{};
  ssize_t count = 0;
  while ((count = ::read(exec_failures_.get(), &failure, sizeof failure)) ==
         static_cast<ssize_t>(sizeof failure)) {
    outcomes_.exec_failed(failure);
    termination_.exec_failed(Clock::now());
  }
  if (count == 0) {  // every rank has become the program
    loop_.forget(exec_failures_.get());
    exec_failures_.reset();
  }
}

void Supervisor::hear_ranks() {
  constexpr int kMostRounds = 64;  // a flood must not keep the loop from everything else
  for (int round = 0; round < kMostRounds; ++round) {
    pollfd waiting{server_.poll_fd(), POLLIN, 0};
    if (poll(&waiting, 1, 0) <= 0) return;
    for (ControlServer::Event const& event : server_.process()) {
      auto const now = Clock::now();
      if (event.kind == ControlServer::Event::Kind::ended) {
        note_end_behind_mpirun(event);
        continue;
      }
      if (event.kind == ControlServer::Event::Kind::rebuilt) {
        say_who_joined(event.membership);
        replacements_.others_met(event.rank, flights_.steps(event.rank), now);
      }
      outcomes_.take(event, now);
      if (event.kind == ControlServer::Event::Kind::late) end_late(event.rank);
      // Of other ranks the end of the process tells.
      if (plan_.mpi_ranks && event.kind == ControlServer::Event::Kind::disconnected) {
        server_.declare_lost(process_has_ended(event.rank, event.process, event.host));
      }
    }
  }
}

void Supervisor::tell_ranks_of(RankOutcome const& ended) {
  bool const killed_by_signal = ended.signal != 0;
  server_.declare_lost({.code = ErrorCode::peer_lost,
                        .manner = killed_by_signal ? Failure::Manner::killed : Failure::Manner::exited,
                        .ranks = {ended.rank},
                        .host = ended.host,
                        .status = killed_by_signal ? ended.signal : ended.exit_code});
}

void Supervisor::judge_end(std::size_t place, std::size_t still_running) {
  RankOutcome const& outcome = outcomes_.ranks()[place];
  bool const did_not_come = outcome.newcomer && outcomes_.members() > 0 && !termination_.begun();
  if (!failed(outcome) && !did_not_come) return;
  outcomes_.failed(place, Clock::now());
  if (goes_on_without(outcome, still_running)) return;
  if (!outcome.killed_by_launcher) output_.silence_mpirun();  // it tells of the same
  termination_.rank_failed(outcome, outcomes_.ranks().size(), still_running, Clock::now());
}

/// Whether enough ranks are left, which then hear of the loss and may rebuild.
bool Supervisor::goes_on_without(RankOutcome const& lost, std::size_t still_running) {
  if (!plan_.min_ranks || termination_.begun()) return false;
  std::size_t const left = outcomes_.members() + ended_well(outcomes_.ranks());
  if (left < static_cast<std::size_t>(*plan_.min_ranks)) return false;
  if (lost.unneeded || still_running == 0) return true;
  console_.say(loss_line(lost, outcomes_.ranks().size(), left));
  std::string const why_not = replacements_.lose(lost.rank.index(), lost, Clock::now());
  if (!why_not.empty()) console_.say(why_not);
  return true;
}

void Supervisor::say_who_joined(Membership const& membership) {
  for (Rank const rank : membership.ranks) {
    RankOutcome const& outcome = outcomes_.ranks()[rank.index()];
    if (outcome.newcomer) console_.say(joined_line(outcome, number_of_ranks(), membership.ranks.size()));
  }
}

/// The others have gone on without it.
void Supervisor::end_late(Rank rank) {
  RankOutcome const& late = outcomes_.ranks()[rank.index()];
  if (late.ended) return;
  console_.say(text(describe_rank(late), " did not come to the others' World::rebuild() in time",
                    late.stopped.empty() ? "" : ", since it was stopped ", late.stopped, ": killing it"));
  processes_.send(rank.index(), SIGKILL);
}

/// mpirun, which ends all ranks when a guard ends with another code than 0, learns of a failure when the
/// others have ended too. Of one that ended well it learns at once: it may have left MPI without
/// MPI_Finalize.
void Supervisor::note_end_behind_mpirun(ControlServer::Event const& event) try {
  if (!plan_.mpi_ranks) return;
  RankOutcome const& outcome = outcomes_.ranks()[event.rank.index()];
  if (!outcome.ended) {
    progress_.look_at(event.rank);
    outcomes_.ended(event, Clock::now());
    if (!outcome.left) tell_ranks_of(outcome);
    judge_end(event.rank.index(), outcomes_.running());
    if (outcomes_.running() == 0) termination_.only_mpirun_is_left(Clock::now());
  }
  if (outcomes_.running() == 0) {
    server_.let_guards_go();
  } else if (!failed(outcome) && !left_early(outcome, number_of_ranks())) {
    server_.let_guards_go(event.rank);
  }
} catch (Error const& error) {  // its words make no sense
  console_.say(text("warning: ", error.what()));
}

void Supervisor::note_end(std::size_t index) {
  auto const end = processes_.end_of(index);
  if (!end) return;
  if (exec_failures_) take_exec_failures();
  hear_ranks();  // all that it said before it ended
  auto const now = Clock::now();
  loop_.forget(processes_.pidfd(index));
  processes_.reap(index);
  output_.drain(index);
  std::size_t const place = outcomes_.place_of(index);
  outcomes_.note_files(place, output_.out(index), output_.err(index));
  if (!plan_.mpi_ranks) progress_.look_at(plan_.ranks[index].rank);

  RankOutcome const& before = outcomes_.ranks()[place];
  bool const killed = (termination_.killed() || before.late || before.unneeded) && end->signal == SIGKILL;
  RankOutcome const& outcome = outcomes_.ended(place, *end, killed, now);
  if (plan_.mpi_ranks) mpirun_ended_ = now;
  if (plan_.mpi_ranks) return;  // it is judged when all is known
  if (!outcome.left) tell_ranks_of(outcome);
  judge_end(place, processes_.running());
  end_newcomers();
}

/// A rank that runs has a deadline for its waits, but nobody waits for the last ranks of a job.
bool Supervisor::may_stand_still() const {
  return !termination_.begun() && outcomes_.running() > 0 && outcomes_.running() < number_of_ranks();
}

void Supervisor::look_for_standstill(Clock::time_point now) {
  next_look_at_stopped_ = now + kBetweenLooksAtStopped;
  if (!outcomes_.stands_still()) return stands_since_.reset();
  if (!stands_since_) stands_since_ = now;
  auto const limit = timeout_of_ranks();
  if (now - *stands_since_ < limit) return;
  outcomes_.note_stopped();
  termination_.stands_still(outcomes_.ranks(), limit, now);
}

void Supervisor::end_ranks() {
  processes_.end_all();
  output_.finish();
}

}  // namespace ddp::launcher
