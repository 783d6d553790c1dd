#include "launcher/supervise/outcome_recorder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <span>
#include <utility>

#include "core/system/file_descriptor.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_rank_guard.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kLongestErrorFile = (1_MiB).value;

/// Empty for anything but a regular file: a rank may have put anything there, and a FIFO must not block us.
std::string content_of(std::string const& path) {
  FileDescriptor const file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string content(std::min(static_cast<std::size_t>(status.st_size), kLongestErrorFile), '\0');
  ssize_t const count = ::read(file.get(), content.data(), content.size());
  content.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return content;
}

/// The rank's own error file, with PyTorch's callstack; without one, PyTorch's error file.
std::optional<ReportedError> written_error(std::string const& directory, Rank rank) {
  auto error = parse_error_file(content_of(error_file(directory, rank)));
  auto elastic = parse_error_file(content_of(elastic_error_file(directory, rank)));
  if (!error) return elastic;
  if (elastic) error->callstack = std::move(elastic->callstack);
  return error;
}

}  // namespace

OutcomeRecorder::OutcomeRecorder(Plan const& plan, std::string directory, EventLog& events)
    : plan_(plan), directory_(std::move(directory)), events_(events) {}

RankOutcome& OutcomeRecorder::add(Rank rank) {
  RankOutcome& outcome = ranks_.emplace_back();
  outcome.rank = rank;
  membership_.push_back(rank);
  if (plan_.log_dir) {
    outcome.out_file = text(*plan_.log_dir, "/rank", rank, ".out");
    outcome.err_file = text(*plan_.log_dir, "/rank", rank, ".err");
  }
  return outcome;
}

void OutcomeRecorder::started(PlannedRank const& rank, pid_t pid) {
  if (plan_.mpi_ranks) {
    for (Rank const each : all_ranks(*plan_.mpi_ranks)) static_cast<void>(add(each));
    ranks_.emplace_back().title = "mpirun";
  } else {
    RankOutcome& outcome = add(rank.rank);
    outcome.device = rank.device;
    outcome.gpu = rank.gpu.value;
  }
  ranks_.back().pid = pid;
  events_.rank_up(ranks_.back());
}

void OutcomeRecorder::replaced(PlannedRank const& rank, pid_t pid) {
  RankOutcome& outcome = ranks_[rank.rank.index()];
  RankOutcome next;
  next.rank = rank.rank;
  next.device = outcome.device;
  next.gpu = outcome.gpu;
  next.out_file = outcome.out_file;
  next.err_file = outcome.err_file;
  next.pid = pid;
  next.replacement = outcome.replacement + 1;
  next.newcomer = true;
  unlink(error_file(directory_, rank.rank).c_str());
  unlink(elastic_error_file(directory_, rank.rank).c_str());
  outcome.survived = true;
  lost_.push_back(std::exchange(outcome, std::move(next)));
  events_.rank_up(outcome);
}

std::size_t OutcomeRecorder::members() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(
      only_ranks(*this), [](RankOutcome const& rank) { return !rank.ended && !rank.newcomer; }));
}

bool OutcomeRecorder::is_ending() const noexcept {
  return std::ranges::any_of(only_ranks(*this),
                             [](RankOutcome const& rank) { return rank.left && !rank.newcomer; });
}

/// how_stopped() of its process, if that is on this host, or of the process that joined.
std::string OutcomeRecorder::how_rank_stopped(RankOutcome const& outcome) const {
  std::string how = plan_.mpi_ranks ? std::string() : how_stopped(outcome.pid);
  if (how.empty() && outcome.member > 0) how = how_stopped(outcome.member);
  return how;
}

void OutcomeRecorder::exec_failed(ExecFailure const& failure) {
  ranks_[static_cast<std::size_t>(failure.rank)].exec_error = failure.error_number;
}

void OutcomeRecorder::take(ControlServer::Event const& event, Clock::time_point now) {
  using Kind = ControlServer::Event::Kind;
  if (event.rank.index() >= ranks_.size()) return;
  RankOutcome& outcome = ranks_[event.rank.index()];
  switch (event.kind) {
    case Kind::joined:
      outcome.joined = true;
      outcome.member = event.pid;
      if (plan_.mpi_ranks) {
        outcome.pid = event.process;
        outcome.host = event.host;
      }
      events_.rank_joined(outcome);
      break;
    case Kind::left:
      outcome.left = true;
      break;
    case Kind::disconnected:
      if (plan_.mpi_ranks && !outcome.ended) outcome.first_trouble = now;
      break;  // the end of its process tells whether that matters
    case Kind::ended:
      break;  // see ended()
    case Kind::late:
      outcome.late = true;
      note_stopped();
      break;
    case Kind::rebuilt:
      rebuilt(event.membership);
      break;
    case Kind::error:
      outcome.error = ReportedError{event.failure};
      note_stopped();
      if (!is_consequence(outcome) && !outcome.ended) outcome.first_trouble = now;
      break;
  }
}

/// What the members said of the loss is no error of theirs any more.
void OutcomeRecorder::rebuilt(Membership const& membership) {
  for (RankOutcome& outcome : ranks_) {
    bool const is_lost = outcome.ended && (launcher::failed(outcome) || !outcome.left);
    if (outcome.late || is_lost) {
      outcome.survived = true;
    } else if (!outcome.ended && !outcome.left) {
      outcome.error.reset();
      outcome.stopped.clear();
      outcome.first_trouble = {};
      unlink(error_file(directory_, outcome.rank).c_str());
    }
    if (std::ranges::find(membership.ranks, outcome.rank) != membership.ranks.end()) outcome.newcomer = false;
  }
  membership_ = membership.ranks;
  went_on_ = std::chrono::system_clock::now();
  events_.rebuild(membership);
}

bool OutcomeRecorder::note_progress(Rank rank, Progress const& progress) {
  RankOutcome& outcome = ranks_[rank.index()];
  if (outcome.progress == progress) return false;
  outcome.progress = progress;
  events_.step(outcome);
  return true;
}

RankOutcome const& OutcomeRecorder::ended(std::size_t index, ProcessEnd const& end, bool killed,
                                          Clock::time_point now) {
  RankOutcome& outcome = ranks_[index];
  outcome.ended = true;
  outcome.exit_code = end.exit_code;
  outcome.signal = end.signal;
  outcome.core_dumped = end.core_dumped;
  outcome.killed_by_launcher = killed;
  if (outcome.first_trouble == Clock::time_point{}) outcome.first_trouble = now;
  if (!outcome.title.empty()) return outcome;
  if (auto written = written_error(directory_, outcome.rank)) {  // it may be more than the runtime reported
    if (written->code.empty() && outcome.error) {
      written->code = outcome.error->code;
      written->failure.code = outcome.error->failure.code;
    }
    outcome.error = std::move(written);
  }
  return outcome;
}

RankOutcome const& OutcomeRecorder::ended(ControlServer::Event const& event, Clock::time_point now) {
  RankEnd const end = decode_rank_end(event.words);
  RankOutcome& outcome = ranks_[event.rank.index()];
  outcome.pid = event.process;
  outcome.host = event.host;
  outcome.device = end.device;
  outcome.gpu = end.gpu;
  outcome.oom = end.oom;
  outcome.without_mpirun = end.why == RankEnd::Why::without_mpirun;
  ProcessEnd how;
  if (WIFEXITED(end.status)) how.exit_code = WEXITSTATUS(end.status);
  if (WIFSIGNALED(end.status))
    how = {.signal = WTERMSIG(end.status), .core_dumped = WCOREDUMP(end.status) != 0};
  return ended(event.rank.index(), how, end.why == RankEnd::Why::told_to, now);
}

std::size_t OutcomeRecorder::running() const noexcept {
  return static_cast<std::size_t>(std::ranges::count(only_ranks(*this), false, &RankOutcome::ended));
}

bool OutcomeRecorder::heard_of_ranks() const noexcept {
  return std::ranges::any_of(only_ranks(*this), [](RankOutcome const& rank) { return rank.pid >= 0; });
}

/// Ranks of which nothing is heard were ended by mpirun, with their guards, if something else explains the
/// job's end.
void OutcomeRecorder::no_more_is_heard(bool stopped_by_signal, Clock::time_point now) {
  RankOutcome& mpirun = ranks_.back();
  auto const behind = only_ranks(*this);
  // Open MPI 5's mpirun exits at once when a daemon on another host has ended. Where it ends by itself, and
  // its daemons after it, this blames another host's rank.
  bool const of_another_host = std::ranges::any_of(
      behind, [this](RankOutcome const& rank) { return rank.without_mpirun && rank.host != plan_.host; });
  for (RankOutcome& rank : behind) {
    bool const follows_mpirun = mpirun.signal != 0 || (of_another_host && rank.host == plan_.host);
    if (rank.without_mpirun && follows_mpirun) rank.killed_by_launcher = true;
  }
  bool const explained = mpirun.signal != 0 || std::ranges::any_of(behind, [](RankOutcome const& rank) {
                           return launcher::failed(rank) && !is_consequence(rank);
                         });
  bool const lost = !stopped_by_signal && (mpirun.killed_by_launcher || (heard_of_ranks() && !explained));
  for (RankOutcome& rank : behind) {
    if (rank.ended) continue;
    rank.unheard = lost;
    if (!rank.unheard && rank.pid >= 0) {
      rank.ended = rank.killed_by_launcher = true;
      rank.signal = SIGKILL;
    }
    if (rank.first_trouble == Clock::time_point{}) rank.first_trouble = now;
  }
  bool const follows =
      stopped_by_signal ? heard_of_ranks() : std::ranges::any_of(behind, [](RankOutcome const& rank) {
        return launcher::failed(rank) && !rank.killed_by_launcher;
      });
  if (follows) mpirun.killed_by_launcher = true;
}

void OutcomeRecorder::failed(std::size_t index, Clock::time_point now) {
  RankOutcome& outcome = ranks_[index];
  if (outcome.host.empty()) outcome.oom = oom_looks_.at_a_failure(now);  // of others their guards have told
  events_.failure(outcome, ranks_.size());
  note_stopped();
}

void OutcomeRecorder::note_files(std::size_t index, RankStream const& out, RankStream const& err) {
  ranks_[index].out_problem = out.file_problem();
  ranks_[index].err_problem = err.file_problem();
}

void OutcomeRecorder::last_words(std::size_t index, RankStream const& err) {
  if (ranks_[index].title.empty()) ranks_[index].last_stderr = err.last_lines(ranks_[index].rank);
}

void OutcomeRecorder::note_stopped() {
  for (RankOutcome& outcome : ranks_) {
    if (!outcome.ended && outcome.stopped.empty()) outcome.stopped = how_rank_stopped(outcome);
  }
}

bool OutcomeRecorder::stands_still() const {
  auto const ranks = only_ranks(*this);
  return std::ranges::any_of(ranks, &RankOutcome::ended) &&
         !std::ranges::all_of(ranks, &RankOutcome::ended) &&
         std::ranges::all_of(ranks, [this](RankOutcome const& outcome) {
           return outcome.ended || !how_rank_stopped(outcome).empty();
         });
}

}  // namespace ddp::launcher
