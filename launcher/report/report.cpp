#include "launcher/report/report.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "core/system/signal_name.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/cores.hpp"
#include "launcher/plan/first_line.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

constexpr char const* kHowToLeave =
    "exit() destroys no local variables: return from main(), or destroy the World before exit()";

bool follows(RankOutcome const& rank) { return failed(rank) && !rank.killed_by_launcher; }

class Lines {
 public:
  template <class... Parts>
  void add(Parts const&... parts) {
    text_ += text("[ddp-launch] ", parts..., "\n");
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Who may have sent a SIGKILL, or killed a process that the rank needed, as far as the kernel tells.
std::string words_about_memory(RankOutcome const& rank) {
  bool const killed = rank.signal == SIGKILL;
  if (!rank.oom) {
    return killed ? "killed from outside: often the kernel's or the container's out-of-memory killer (dmesg)"
                  : "";
  }
  std::string const& file = rank.oom->before.file;
  if (rank.oom->rose()) {
    return text("oom_kill of ", file, " rose from ", rank.oom->before.count, " to ", rank.oom->after,
                " in the last ", rank.oom->within.count(), " s: ",
                killed ? "the kernel's out-of-memory killer, unless that ended another process of the cgroup"
                       : "the kernel's out-of-memory killer ended another process of the cgroup");
  }
  if (!killed) return {};
  return text("killed from outside, and not by the kernel's out-of-memory killer (oom_kill of ", file,
              " stayed at ", rank.oom->after, "): a person, a scheduler, or whatever watches this container");
}

char const* hint(int signal) {
  switch (signal) {
    case SIGBUS:
      return "often a full /dev/shm or a truncated file that is mapped";
    case SIGXFSZ:
      return "a file, or memory that ranks share, grew beyond the limit of ulimit -f";
    case SIGILL:
      return "often a binary that was built for another processor";
    default:
      return nullptr;
  }
}

/// Reported errors may have several lines; each is printed as one.
void add_error(Lines& lines, RankOutcome const& rank) {
  ReportedError const& error = *rank.error;
  std::string const message = to_string(error.failure);
  std::string_view rest = message;
  std::string label = error.code.empty() ? "its error: " : text("its error: ", error.code, ": ");
  for (;;) {
    std::size_t const stop = rest.find('\n');
    lines.add("  ", label, rest.substr(0, stop));
    if (stop == std::string_view::npos || stop + 1 == rest.size()) break;
    rest.remove_prefix(stop + 1);
    label = "  ";
  }
  // Python prints the same to stderr, if the program lets it.
  if (error.callstack.empty() ||
      std::ranges::find(rank.last_stderr, error.callstack.back()) != rank.last_stderr.end())
    return;
  lines.add("  where it was raised:");
  for (std::string const& line : error.callstack) lines.add("  | ", line);
}

void add_cause(Lines& lines, RankOutcome const& cause, JobOutcome const& job) {
  lines.add("first cause: ", describe_rank(cause), " on ", cause.host.empty() ? job.host : cause.host, " ",
            describe_end(cause, job.ranks.size()));
  if (!cause.stopped.empty()) {
    lines.add(std::ranges::any_of(job.ranks, follows) ? "  the others waited for it until their deadline"
                                                      : "  the others had ended, and the deadline passed");
  } else if (left_early(cause, job.ranks.size())) {
    lines.add("  another rank needed it. ", kHowToLeave);
  } else if (!failed(cause) && !left_with_an_error(cause)) {
    lines.add("  it left the group while others needed it");
  }
  if (!cause.killed_by_launcher && !cause.without_mpirun) {
    if (std::string const words = words_about_memory(cause); !words.empty()) lines.add("  ", words);
    if (char const* words = hint(cause.signal); words != nullptr) lines.add("  ", words);
  }
  if (cause.progress) lines.add("  last progress since the start: ", to_string(*cause.progress));
  if (!cause.last_collective.empty()) lines.add("  last collective: ", cause.last_collective);
  if (cause.error) add_error(lines, cause);
  if (!cause.last_stderr.empty()) {
    lines.add("  the last lines of its stderr:");
    for (std::string const& line : cause.last_stderr) lines.add("  | ", line);
  }
  if (!cause.out_file.empty()) {
    auto const file = [](std::string const& path, std::string const& problem) {
      return problem.empty() ? path : text(path, " (", problem, ")");
    };
    bool const all = cause.out_problem.empty() && cause.err_problem.empty();
    lines.add(all ? "  all of its output: " : "  its output, as far as it could be written: ",
              file(cause.out_file, cause.out_problem), " and ", file(cause.err_file, cause.err_problem));
  }
}

bool ignored(RankOutcome const& rank, JobOutcome const& job) { return job.min_ranks && ignored_a_loss(rank); }

/// `self`, if not empty, is what to call the rank in its reported error.
std::string describe_consequence(RankOutcome const& rank, JobOutcome const& job, std::string_view self = {}) {
  if (!rank.ended && !rank.unheard) return "did not end even after SIGKILL";
  if (rank.stopped.empty() && rank.killed_by_launcher && !rank.unneeded && rank.signal != 0) {
    return "was still running and was killed by ddp-launch";
  }
  return text(describe_end(rank, job.ranks.size()), ignored(rank, job) ? " without World::rebuild()" : "",
              rank.error ? text(": ", rank.error->code, rank.error->code.empty() ? "" : ": ",
                                first_line(to_string(rank.error->failure, self)))
                         : std::string{});
}

/// One line for each rank; one for all ranks that ended alike.
void add_consequences(Lines& lines, std::span<RankOutcome const* const> ranks, JobOutcome const& job) {
  struct Group {
    std::string end;
    RankOutcome const* first;
    std::vector<Rank> ranks;
  };
  std::vector<Group> groups;
  for (RankOutcome const* rank : ranks) {
    std::string const end = describe_consequence(*rank, job, "this rank");
    auto group = std::ranges::find(groups, end, &Group::end);
    if (group == groups.end()) group = groups.insert(group, {end, rank, {}});
    group->ranks.push_back(rank->rank);
  }
  for (Group const& group : groups) {
    if (group.ranks.size() == 1) {
      lines.add("  ", describe_rank(*group.first), " ", describe_consequence(*group.first, job));
    } else {
      lines.add("  ", list_ranks(group.ranks), ": each ", group.end);
    }
  }
}

void warn_of_early_leaves(Lines& lines, JobOutcome const& job) {
  std::vector<Rank> ranks;
  for (RankOutcome const& rank : job.ranks) {
    if (left_early(rank, job.ranks.size()) && !rank.survived) ranks.push_back(rank.rank);
  }
  if (ranks.empty()) return;
  lines.add("warning: ", list_ranks(ranks),
            " exited with code 0 without leaving the group. No rank waited, so the job is well. ",
            kHowToLeave);
}

/// An end that the forwarded signal explains.
bool obeyed(RankOutcome const& rank, JobOutcome const& job) {
  if (!rank.ended || job.forwarded_signal == 0 || job.failed_before_signal) return false;
  auto const by = [&](int signal) {
    return rank.signal == signal || (rank.signal == 0 && rank.exit_code == exit_code::kSignalBase + signal);
  };
  bool const behind_mpirun = !job.ranks.back().title.empty();  // which says SIGTERM, whatever it was told
  return by(job.forwarded_signal) || !failed(rank) || (behind_mpirun && by(SIGTERM));
}

/// The ranks without which the others have gone on.
void add_losses(Lines& lines, JobOutcome const& job) {
  std::vector<RankOutcome> all = job.lost;
  all.insert(all.end(), job.ranks.begin(), job.ranks.end());
  for (RankOutcome const& rank : all) {
    bool const is_loss = failed(rank) || rank.newcomer || ignored_a_loss(rank);
    if (!rank.survived && !(survived(job) && is_loss)) continue;
    lines.add("went on without ", describe_rank(rank), ", which ", describe_consequence(rank, job));
    if (rank.killed_by_launcher) continue;
    if (std::string const words = words_about_memory(rank); !words.empty()) lines.add("  ", words);
    if (rank.progress) lines.add("  last progress since the start: ", to_string(*rank.progress));
  }
}

std::string report_exec_failure(JobOutcome const& job, int error_number) {
  Lines lines;
  RankOutcome failure;
  failure.exec_error = error_number;
  lines.add(job.program, " ", describe_end(failure, job.ranks.size()),
            error_number == ENOEXEC  ? " (a script without a #! line, or a program for another machine?)"
            : error_number == ENOENT ? " (the interpreter in its #! line or its dynamic linker is not there)"
                                     : "");
  return lines.take();
}

}  // namespace

std::string list_ranks(std::span<Rank const> ranks) {
  std::vector<int> numbers;
  for (Rank const rank : ranks) numbers.push_back(rank.value());
  return text(numbers.size() == 1 ? "rank " : "ranks ", cpu_list(numbers));
}

std::string describe_rank(RankOutcome const& outcome) {
  if (!outcome.title.empty()) return text(outcome.title, " (pid ", outcome.pid, ")");
  if (outcome.pid < 0) return text("rank ", outcome.rank);
  return text("rank ", outcome.rank, " (pid ", outcome.pid,
              outcome.device ? text(", ", *outcome.device) : std::string(), outcome.gpu.empty() ? "" : " = ",
              outcome.gpu, ")");
}

std::string first_failure_line(RankOutcome const& outcome, std::size_t size, std::size_t still_running,
                               std::chrono::milliseconds grace) {
  bool const has_code = outcome.error && !outcome.error->code.empty();
  return text(describe_rank(outcome), " ", describe_end(outcome, size),
              has_code ? text(" (", outcome.error->code, ")") : std::string{},
              still_running == 0 ? std::string{}
                                 : text("; waiting up to ", seconds(grace), " s for the ",
                                        still_running == 1 ? "other rank" : "others"));
}

std::string loss_line(RankOutcome const& outcome, std::size_t size, std::size_t left) {
  return text(describe_rank(outcome), " ", describe_end(outcome, size), ": ", left, " of ", size,
              left == 1 ? " ranks is left" : " ranks are left");
}

std::string replacement_line(RankOutcome const& outcome, int number, int most) {
  return text("a new process for ", describe_rank(outcome), ", ", number, " of ", most);
}

std::string joined_line(RankOutcome const& outcome, std::size_t size, std::size_t now) {
  return text(describe_rank(outcome), " takes part: ", now, " of ", size, " ranks again");
}

bool survived(JobOutcome const& job) {
  return job.min_ranks && ended_well(job.ranks) >= static_cast<std::size_t>(*job.min_ranks);
}

std::optional<std::size_t> named_cause(JobOutcome const& job) {
  if (survived(job)) return std::nullopt;
  auto const cause = first_cause(job.ranks);
  return cause && !obeyed(job.ranks[*cause], job) ? cause : std::nullopt;
}

std::string report(JobOutcome const& job) {
  auto const not_started =
      std::ranges::find_if(job.ranks, [](RankOutcome const& rank) { return rank.exec_error != 0; });
  if (not_started != job.ranks.end()) return report_exec_failure(job, not_started->exec_error);

  Lines lines;
  auto const cause = named_cause(job);
  if (job.forwarded_signal != 0) {
    lines.add("the job was stopped by ", signal_name(job.forwarded_signal));
  }
  std::vector<RankOutcome const*> consequences;
  for (RankOutcome const& rank : job.ranks) {
    bool const is_cause = cause && &rank == &job.ranks[*cause];
    bool const is_rank = rank.title.empty() && (rank.pid >= 0 || rank.unheard);  // one that was started
    bool const is_loss = rank.survived || survived(job);
    bool const amiss = is_rank && (!rank.ended || (!is_loss && (failed(rank) || ignored(rank, job))));
    if (amiss && !is_cause && !obeyed(rank, job)) consequences.push_back(&rank);
  }
  if (!cause) {
    if (job.forwarded_signal == 0) warn_of_early_leaves(lines, job);
    add_consequences(lines, consequences, job);
    add_losses(lines, job);
    if (job.output_lost) lines.add("not all output could be written; exit code ", job_exit_code(job));
    return lines.take();
  }
  add_cause(lines, job.ranks[*cause], job);
  if (!consequences.empty()) lines.add("consequences:");
  add_consequences(lines, consequences, job);
  add_losses(lines, job);
  if (job.difference) lines.add("the ranks' collectives first differ at ", *job.difference);
  if (!job.flight_files.empty())
    lines.add("the last collectives of ", job.flight_ranks, ": ", job.flight_files);
  lines.add("exit code ", job_exit_code(job));
  return lines.take();
}

int job_exit_code(JobOutcome const& job) {
  std::size_t const size = job.ranks.size();
  for (RankOutcome const& rank : job.ranks) {
    if (rank.exec_error != 0) return exec_failure_code(rank.exec_error);
  }
  auto const cause = first_failure(job.ranks);
  bool const all_well = std::ranges::all_of(job.ranks, [](RankOutcome const& rank) {
    bool const is_mpirun_that_followed = !rank.title.empty() && rank.killed_by_launcher;
    return is_mpirun_that_followed || rank.survived ||
           (rank.ended && rank.signal == 0 && rank.exit_code == 0);
  });
  int const well = job.output_lost ? exit_code::kOutputLost : 0;
  if (job.forwarded_signal != 0 && !job.failed_before_signal) {
    return all_well ? well : exit_code::kSignalBase + job.forwarded_signal;
  }
  if (survived(job)) return well;
  if (cause) return exit_code_of(job.ranks[*cause], size);
  return all_well ? well : exit_code::kInternal;
}

}  // namespace ddp::launcher
