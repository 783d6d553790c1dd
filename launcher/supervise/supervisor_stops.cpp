// The supervisor and processes that are stopped: all of the job by Ctrl-Z, or one rank.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "core/process_stat.hpp"
#include "launcher/supervise/supervisor.hpp"

namespace ddp::launcher {
namespace {

/// Ranks that wait have not waited while they were stopped, though the times that they wrote down say so.
constexpr std::chrono::seconds kUntilRanksAreBack{2};

/// Signals that come together it takes in the order of their numbers: SIGCONT before SIGTSTP.
constexpr std::chrono::milliseconds kUntilMpirunTookASignal{300};

/// As the SIGTSTP does that was read instead of taken. Returns when somebody sends SIGCONT: the shell's fg or
/// bg. Where there is no shell that could (xterm -e, ssh -t, a session's leader), the kernel discards
/// SIGTSTP, though not SIGSTOP, and this returns at once.
void stop_this_process() {
  sigset_t stop_key;
  sigset_t former;
  sigemptyset(&stop_key);
  sigaddset(&stop_key, SIGTSTP);
  raise(SIGTSTP);  // it waits, since it is blocked
  sigprocmask(SIG_UNBLOCK, &stop_key, &former);
  sigprocmask(SIG_SETMASK, &former, nullptr);
}

}  // namespace

/// Ctrl-Z reaches the launcher only: the ranks have sessions of their own. They stop before it and go on
/// after it, and no deadline runs meanwhile; those of the ranks see to that by themselves (Patience). mpirun
/// does not stop: it stops the ranks of all hosts.
void Supervisor::stop_and_go_on() {
  pass_on(plan_.mpi_ranks ? SIGTSTP : SIGSTOP);
  auto const begin = Clock::now();
  stop_this_process();
  if (plan_.mpi_ranks) std::this_thread::sleep_until(begin + kUntilMpirunTookASignal);
  auto const now = Clock::now();
  auto const stopped = now - begin;
  for (auto* moment : {&kill_at_, &give_up_at_}) {
    if (*moment) **moment += stopped;
  }
  next_look_ = std::max(next_look_ + stopped, now + kUntilRanksAreBack);
  if (server_) server_->leave_out(stopped);
  pass_on(SIGCONT);
}

/// At the first sign of a failure: a rank that is stopped cannot fail, but may be what the others waited for.
void Supervisor::note_stopped_ranks() {
  for (RankOutcome& outcome : job_.ranks) {
    if (outcome.ended || !outcome.stopped.empty()) continue;
    outcome.stopped = how_stopped(outcome.pid);
    if (outcome.stopped.empty() && outcome.member > 0) outcome.stopped = how_stopped(outcome.member);
  }
}

}  // namespace ddp::launcher
