// The supervisor's last part: how ranks end, and how they are ended.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <thread>
#include <utility>

#include "ddp/core/text.hpp"
#include "launcher/output/rank_words.hpp"
#include "launcher/process/process_tree.hpp"
#include "launcher/supervise/supervisor.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDoubleSignal{200};  ///< closer together, two SIGINT are one key press
constexpr milliseconds kAfterKill{10000};   ///< for a process that the kernel cannot end at once
constexpr milliseconds kLeftoverTime{2000};
constexpr std::size_t kLongestErrorFile = std::size_t{1} << 20;

/// Empty for what is no regular file: a rank may have put anything there, and a FIFO must not stop the
/// launcher.
std::string content_of(std::string const& path) {
  FileDescriptor const file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string content(std::min(static_cast<std::size_t>(status.st_size), kLongestErrorFile), '\0');
  ssize_t const count = ::read(file.get(), content.data(), content.size());
  content.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return content;
}

struct RankError {
  Rank rank;
  ReportedError error;
};

/// What the rank left as its last words: ours, with where PyTorch says that the exception came from, or else
/// PyTorch's.
std::optional<ReportedError> written_error(std::string const& directory, Rank rank) {
  auto error = parse_error_file(content_of(error_file(directory, rank)));
  auto elastic = parse_error_file(content_of(elastic_error_file(directory, rank)));
  if (!error) return elastic;
  if (elastic) error->callstack = std::move(elastic->callstack);
  return error;
}

/// Of what the ranks under mpirun wrote, the earliest that only followed no other.
std::optional<RankError> first_error_of(std::string const& directory, int ranks) {
  std::optional<RankError> first;
  for (Rank const rank : all_ranks(ranks)) {
    auto error = written_error(directory, rank);
    if (!error) continue;
    error->message = text("rank ", rank, ": ", error->message);
    if (!first || came_before(*error, first->error)) first = RankError{rank, std::move(*error)};
  }
  return first;
}

}  // namespace

void Supervisor::note_end(std::size_t index) {
  RankOutcome& outcome = job_.ranks[index];
  Running& running = ranks_[index];
  if (outcome.ended) return;
  siginfo_t info{};
  // Not reaped yet: while it is a zombie, its number and its group's are nobody else's.
  int const pidfd = running.child.pidfd.get();
  bool const known = waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  if (!known || info.si_pid == 0) return;
  if (exec_failures_) handle_exec_failures();
  handle_control();  // all that it said before it ended

  outcome.ended = true;
  (info.si_code == CLD_EXITED ? outcome.exit_code : outcome.signal) = info.si_status;
  outcome.core_dumped = info.si_code == CLD_DUMPED;
  outcome.killed_by_launcher = killed_ && outcome.signal == SIGKILL;
  outcome.hung_after_failure = outcome.killed_by_launcher && mpirun_told_ && job_.forwarded_signal == 0;
  if (outcome.first_trouble == RankOutcome::Clock::time_point{})
    outcome.first_trouble = RankOutcome::Clock::now();

  end_leftovers(outcome.pid);
  waitpid(outcome.pid, nullptr, 0);
  own_children_.erase(outcome.pid);
  guard_->forget(outcome.pid);
  running.child.pidfd.reset();

  running.out->forward(console_, RankStream::kMostInAPipe);
  running.err->forward(console_, RankStream::kMostInAPipe);
  if (!plan_.mpi_ranks) read_error_file(outcome);  // those of ranks under mpirun when all is there
  bool const bad = failed(outcome, job_.ranks.size());
  if (!outcome.left) {
    std::string const end = describe_end(outcome, job_.ranks.size());
    std::size_t const verb = end.starts_with("was ") ? 4 : 0;  // it becomes "rank 1 died: killed by …"
    server_->declare_lost({outcome.rank, LostRank::Manner::died, end.substr(verb)});
  }
  if (!bad) return;
  outcome.oom = oom_looks_.at_a_failure(Clock::now());
  files_.events.failure(outcome, job_.ranks.size());
  note_failure(outcome);
}

void Supervisor::note_failure(RankOutcome const& outcome) {
  note_stopped_ranks();
  bool const first = !failure_seen_;
  failure_seen_ = true;
  if (!first || job_.forwarded_signal != 0) return;
  std::size_t const running = still_running();
  if (running == 0) return;  // the report follows at once
  console_.group_repeats();
  console_.say(first_failure_line(outcome, job_.ranks.size(), running, options_.failure_grace));
  kill_at_ = Clock::now() + options_.failure_grace;
}

/// mpirun ends the other ranks and then waits for every host, also for one that it cannot reach any more.
void Supervisor::note_failure_under_mpirun() {
  if (std::exchange(mpirun_told_, true) || job_.forwarded_signal != 0) return;
  console_.group_repeats();
  auto const end_of_grace = Clock::now() + options_.failure_grace;
  kill_at_ = kill_at_ ? std::min(*kill_at_, end_of_grace) : end_of_grace;
}

/// A rank that knows of no other's failure before its own knows better than mpirun, which names the first to
/// end.
void Supervisor::find_culprit(RankOutcome& mpirun, std::optional<Rank> named) const {
  if (mpirun.signal == 0 && mpirun.exit_code == 0) return;
  auto first = first_error_of(directory_.path(), *plan_.mpi_ranks);
  mpirun.culprit = named;
  if (!first) return;
  if (!named || !follows_another(first->error)) mpirun.culprit = first->rank;
  mpirun.error = std::move(first->error);
}

/// The rank's last word about its failure: a program may write more than the runtime reported.
void Supervisor::read_error_file(RankOutcome& outcome) {
  auto written = written_error(directory_.path(), outcome.rank);
  if (!written) return;
  if (written->code.empty() && outcome.error) written->code = outcome.error->code;
  outcome.error = std::move(written);
}

/// Ends what a rank's session still holds; the rank itself is dead.
void Supervisor::end_leftovers(pid_t session) {
  Deadline const deadline = Deadline::after(kLeftoverTime);
  kill(-session, SIGKILL);
  for (bool someone_lives = true; someone_lives && !deadline.expired();) {
    someone_lives = false;
    for (pid_t const pid : children_of_this_process()) {
      if (own_children_.contains(pid)) continue;
      ProcessEntry const process = read_process(pid);
      if (process.zombie) {
        waitpid(pid, nullptr, WNOHANG);
      } else if (process.session == session) {
        kill(pid, SIGKILL);
        someone_lives = true;
      }
    }
    if (someone_lives) std::this_thread::sleep_for(milliseconds(1));
  }
}

/// Somebody killed the guard: the ranks get another one.
void Supervisor::renew_guard() {
  pid_t const former = guard_ ? guard_->pid() : -1;
  if (!guard_ || !guard_->has_ended()) return;
  own_children_.erase(former);
  guard_ = std::make_unique<Guard>(directory_.path());
  own_children_.insert(guard_->pid());
  for (RankOutcome const& outcome : job_.ranks) {
    if (!outcome.ended) guard_->watch(outcome.pid);
  }
}

void Supervisor::reap_adopted() {
  for (pid_t const pid : children_of_this_process()) {
    if (!own_children_.contains(pid)) waitpid(pid, nullptr, WNOHANG);
  }
}

void Supervisor::pass_on(int signal) const {
  if (plan_.mpi_ranks && signal == SIGQUIT) signal = SIGTERM;  // mpirun would die without a word to its ranks
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!job_.ranks[i].ended) signal_group(ranks_[i].child, signal);
  }
}

void Supervisor::forward_signal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2)
    return pass_on(signal);  // news for the ranks, not the job's end
  auto const now = Clock::now();
  if (signal == SIGINT) {
    bool const again = last_interrupt_.has_value();
    if (again && now - *last_interrupt_ < kDoubleSignal) return;
    last_interrupt_ = now;
    if (again) {
      console_.say("second interrupt: killing the ranks");
      kill_ranks();
      return;
    }
  }
  if (job_.forwarded_signal == 0) {
    job_.forwarded_signal = signal;
    job_.failed_before_signal = failure_seen_;
    auto const end_of_grace = now + options_.grace;
    if (!killed_) kill_at_ = kill_at_ ? std::min(*kill_at_, end_of_grace) : end_of_grace;
    if (!options_.quiet) {
      console_.say(
          text(signal_name(signal),
               plan_.mpi_ranks
                   ? ": passed on to mpirun, which gives the ranks at most 1 s after a SIGTERM"
                   : text(": passed on to the ranks, which have ", seconds(options_.grace), " s to end"),
               signal == SIGINT ? "; a second Ctrl-C kills them" : ""));
    }
  }
  pass_on(signal);
}

void Supervisor::apply_deadlines() {
  if (!kill_at_ || Clock::now() < *kill_at_ || still_running() == 0) return;
  std::vector<Rank> slow;
  for (RankOutcome const& outcome : job_.ranks) {
    if (!outcome.ended) slow.push_back(outcome.rank);
  }
  bool const stopping = job_.forwarded_signal != 0 && !job_.failed_before_signal;
  if (mpirun_told_ && !stopping) {
    console_.say(text("mpirun did not end within ", seconds(options_.failure_grace),
                      " s of a rank's failure, as when it cannot reach one of the hosts: killing it"));
    return kill_ranks();
  }
  console_.say(text(list_ranks(slow), " did not end within ",
                    seconds(stopping ? options_.grace : options_.failure_grace), " s: killing"));
  kill_ranks();
}

void Supervisor::kill_ranks() {
  kill_at_.reset();
  if (!killed_) give_up_at_ = Clock::now() + kAfterKill;
  killed_ = true;
  pass_on(SIGKILL);
}

/// Leaves no process and no file behind. Safe to call again.
void Supervisor::clean_up() {
  if (!server_) return;
  std::vector<pid_t> remaining;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!job_.ranks[i].ended) remaining.push_back(job_.ranks[i].pid);
  }
  if (!remaining.empty()) {
    end_sessions(remaining, Deadline::after(kLeftoverTime));
    for (pid_t const pid : remaining) waitpid(pid, nullptr, WNOHANG);
  }
  for (Running& running : ranks_) {
    running.out->finish(console_);
    running.err->finish(console_);
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankOutcome& outcome = job_.ranks[i];
    if (plan_.mpi_ranks) find_culprit(outcome, ranks_[i].err->named_by_mpirun());
    outcome.last_stderr = ranks_[i].err->last_lines(outcome.culprit);
  }
  server_.reset();
  directory_.remove();
  guard_.reset();
}

std::size_t Supervisor::still_running() const {
  return static_cast<std::size_t>(std::count_if(job_.ranks.begin(), job_.ranks.end(),
                                                [](RankOutcome const& rank) { return !rank.ended; }));
}

}  // namespace ddp::launcher
