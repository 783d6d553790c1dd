#include "launcher/supervise/outcome_recorder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/system/file_descriptor.hpp"
#include "core/system/process_stat.hpp"
#include "core/utc_time.hpp"
#include "ddp/core/text.hpp"

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

/// how_stopped() of its process, or of the process that joined.
std::string how_rank_stopped(RankOutcome const& outcome) {
  std::string how = how_stopped(outcome.pid);
  if (how.empty() && outcome.member > 0) how = how_stopped(outcome.member);
  return how;
}

}  // namespace

OutcomeRecorder::OutcomeRecorder(Plan const& plan, std::string directory, EventLog& events)
    : plan_(plan), directory_(std::move(directory)), events_(events) {}

void OutcomeRecorder::started(PlannedRank const& rank, pid_t pid) {
  RankOutcome outcome;
  outcome.rank = rank.rank;
  outcome.pid = pid;
  outcome.device = rank.device;
  outcome.gpu = rank.gpu.value;
  if (plan_.mpi_ranks) outcome.title = "mpirun";
  if (plan_.log_dir) {
    std::string const name = plan_.mpi_ranks ? "rank*" : text("rank", rank.rank);
    outcome.out_file = text(*plan_.log_dir, "/", name, ".out");
    outcome.err_file = text(*plan_.log_dir, "/", name, ".err");
  }
  ranks_.push_back(std::move(outcome));
  events_.rank_up(ranks_.back());
}

void OutcomeRecorder::exec_failed(ExecFailure const& failure) {
  ranks_[static_cast<std::size_t>(failure.rank)].exec_error = failure.error_number;
}

void OutcomeRecorder::take(ControlServer::Event const& event, Clock::time_point now) {
  using Kind = ControlServer::Event::Kind;
  if (plan_.mpi_ranks) return take_behind_mpirun(event);
  if (event.rank.index() >= ranks_.size()) return;
  RankOutcome& outcome = ranks_[event.rank.index()];
  switch (event.kind) {
    case Kind::joined:
      outcome.joined = true;
      outcome.member = event.pid;
      events_.rank_joined(outcome);
      break;
    case Kind::left:
      outcome.left = true;
      break;
    case Kind::disconnected:
      break;  // the end of its process tells whether that matters
    case Kind::progress:
      outcome.progress = event.progress;
      events_.step(outcome);
      break;
    case Kind::error:
      outcome.error = ReportedError{event.failure};
      note_stopped();
      if (!is_consequence(outcome) && !outcome.ended) outcome.first_trouble = now;
      break;
  }
}

/// Its time is that of this host's clock: those of others may be wrong.
void OutcomeRecorder::take_behind_mpirun(ControlServer::Event const& event) {
  if (event.kind != ControlServer::Event::Kind::error) return;
  ReportedError error{event.failure};
  error.time = utc_text(std::chrono::system_clock::now());
  errors_.try_emplace(event.rank, std::move(error));
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
  if (plan_.mpi_ranks) return outcome;  // what its ranks wrote is read when all is there
  if (auto written = written_error(directory_, outcome.rank)) {  // it may be more than the runtime reported
    if (written->code.empty() && outcome.error) {
      written->code = outcome.error->code;
      written->failure.code = outcome.error->failure.code;
    }
    outcome.error = std::move(written);
  }
  return outcome;
}

void OutcomeRecorder::failed(std::size_t index, Clock::time_point now) {
  RankOutcome& outcome = ranks_[index];
  outcome.oom = oom_looks_.at_a_failure(now);
  events_.failure(outcome, ranks_.size());
  note_stopped();
}

void OutcomeRecorder::note_files(std::size_t index, RankStream const& out, RankStream const& err) {
  ranks_[index].out_problem = out.file_problem();
  ranks_[index].err_problem = err.file_problem();
}

void OutcomeRecorder::last_words(std::size_t index, RankStream const& err) {
  RankOutcome& outcome = ranks_[index];
  if (plan_.mpi_ranks) find_culprit(outcome, err);
  outcome.last_stderr = err.last_lines(outcome.culprit);
}

void OutcomeRecorder::note_stopped() {
  for (RankOutcome& outcome : ranks_) {
    if (!outcome.ended && outcome.stopped.empty()) outcome.stopped = how_rank_stopped(outcome);
  }
}

bool OutcomeRecorder::stands_still() const {
  return std::ranges::any_of(ranks_, &RankOutcome::ended) &&
         !std::ranges::all_of(ranks_, &RankOutcome::ended) &&
         std::ranges::all_of(ranks_, [](RankOutcome const& outcome) {
           return outcome.ended || !how_rank_stopped(outcome).empty();
         });
}

/// mpirun names the first rank to end, or the host that it lost. A rank whose error follows from no other is
/// a better answer than mpirun's. The rank that it waited for may be stopped, or gone.
void OutcomeRecorder::find_culprit(RankOutcome& mpirun, RankStream const& err) const {
  if (!launcher::failed(mpirun)) return;
  auto errors = errors_;
  for (Rank const rank : all_ranks(*plan_.mpi_ranks)) {  // of this host; they may say more
    auto written = written_error(directory_, rank);
    if (!written) continue;
    auto const [said, is_new] = errors.try_emplace(rank, *written);
    if (!is_new) said->second.callstack = std::move(written->callstack);
  }
  auto const first = std::ranges::min_element(
      errors, [](auto const& one, auto const& other) { return came_before(one.second, other.second); });
  mpirun.culprit = err.named_by_mpirun();
  mpirun.lost_host = err.lost_host();
  if (first == errors.end()) return;
  auto const& [rank, error] = *first;
  bool const only_waited = waited_for_another(error.failure);
  if (!mpirun.culprit || !follows_another(error.failure)) mpirun.culprit = rank;
  if (auto const blamed = began_with(error.failure)) mpirun.culprit = blamed;
  if (!mpirun.lost_host.empty() && only_waited) mpirun.culprit.reset();
  if (!only_waited) mpirun.lost_host.clear();
  mpirun.error = error;
  mpirun.error_of = rank;
}

}  // namespace ddp::launcher
