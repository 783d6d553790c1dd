#include "launcher/supervise/termination.hpp"

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "core/system/signal_name.hpp"
#include "ddp/core/text.hpp"
#include "launcher/report/report.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDoubleSignal{200};  ///< closer together, two SIGINT are one key press
constexpr milliseconds kAfterKill{10000};   ///< for a process that the kernel cannot end at once
constexpr milliseconds kForMpirun{2000};    ///< to end ranks of all hosts, which takes it 1 s

}  // namespace

Termination::Termination(Options const& options, bool under_mpirun, Console& console, Send send)
    : options_(options), under_mpirun_(under_mpirun), console_(console), send_(std::move(send)) {}

void Termination::pass_on(int signal, Clock::time_point now) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return send_(signal);  // for the ranks: the job goes on
  if (signal == SIGINT) {
    bool const again = last_interrupt_.has_value();
    if (again && now - *last_interrupt_ < kDoubleSignal) return;
    last_interrupt_ = now;
    if (again) {
      console_.say("second interrupt: killing the ranks");
      return kill(now);
    }
  }
  if (signal_ == 0) {
    signal_ = signal;
    failed_before_signal_ = failure_seen_;
    allow(options_.grace, now);
    if (!options_.quiet) {
      console_.say(text(
          signal_name(signal),
          under_mpirun_ ? ": passed on to mpirun, which gives the ranks at most 1 s after a SIGTERM"
                        : text(": passed on to the ranks, which have ", seconds(options_.grace), " s to end"),
          signal == SIGINT ? "; a second Ctrl-C kills them" : ""));
    }
  }
  // With SIGQUIT, mpirun would die without telling its ranks.
  send_(under_mpirun_ && signal == SIGQUIT ? SIGTERM : signal);
}

void Termination::rank_failed(RankOutcome const& outcome, std::size_t size, std::size_t still_running,
                              Clock::time_point now) {
  bool const first = !std::exchange(failure_seen_, true);
  if (!first || signal_ != 0 || still_running == 0) return;  // with none left the report follows at once
  console_.group_repeats();
  if (!outcome.killed_by_launcher) {
    console_.say(first_failure_line(outcome, size, still_running, options_.failure_grace));
  }
  allow(options_.failure_grace, now);
}

void Termination::exec_failed(Clock::time_point now) {
  failure_seen_ = true;
  kill(now);
}

void Termination::stands_still(std::span<RankOutcome const> ranks, Deadline::Duration waited,
                               Clock::time_point now) {
  failure_seen_ = true;
  for (RankOutcome const& outcome : ranks) {
    if (outcome.ended) continue;
    console_.say(text(describe_rank(outcome), " has been stopped ", outcome.stopped, " for ", seconds(waited),
                      " s (DDP_TIMEOUT), and the other ranks have ended: killing; kill -CONT ", outcome.pid,
                      " in time lets it go on"));
  }
  kill(now);
}

void Termination::only_mpirun_is_left(Clock::time_point now) {
  if (failure_seen_ && !mpirun_ends_ranks_) allow(options_.failure_grace, now);
}

void Termination::enforce(std::span<RankOutcome const> ranks, Clock::time_point now) {
  if (killed_ || !deadline_ || now < *deadline_) return;
  std::vector<Rank> slow;
  bool someone_runs = false;
  for (RankOutcome const& outcome : ranks) {
    someone_runs = someone_runs || !outcome.ended;
    if (!outcome.ended && outcome.title.empty()) slow.push_back(outcome.rank);
  }
  if (!someone_runs) return;
  bool const stopping = signal_ != 0 && !failed_before_signal_;
  auto const grace = mpirun_ends_ranks_ ? kForMpirun : stopping ? options_.grace : options_.failure_grace;
  bool const is_mpirun = mpirun_ends_ranks_ || slow.empty();
  console_.say(text(is_mpirun ? "mpirun" : list_ranks(slow), " did not end within ", seconds(grace),
                    " s: killing", is_mpirun ? " it" : ""));
  if (!under_mpirun_ || signal_ != 0 || is_mpirun) return kill(now);
  mpirun_ends_ranks_ = true;
  send_(SIGTERM);
  deadline_ = now + kForMpirun;
}

void Termination::leave_out(Clock::duration stopped) {
  if (deadline_) *deadline_ += stopped;
}

void Termination::allow(Deadline::Duration grace, Clock::time_point now) {
  if (killed_) return;
  deadline_ = deadline_ ? std::min(*deadline_, now + grace) : now + grace;
}

void Termination::kill(Clock::time_point now) {
  if (!std::exchange(killed_, true)) deadline_ = now + kAfterKill;
  send_(SIGKILL);
}

}  // namespace ddp::launcher
