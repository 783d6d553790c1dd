#include "launcher/output/event_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "bootstrap/failure_json.hpp"
#include "core/system/own_file.hpp"
#include "core/system/signal_name.hpp"
#include "core/utc_time.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;  // a line begins with what happened, and when

double seconds_since(std::chrono::steady_clock::time_point began) {
  using std::chrono::milliseconds;
  return seconds(std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began));
}

void add_text(Json& fields, char const* name, std::string const& value) {
  if (!value.empty()) fields[name] = value;
}

/// Names the rank, or an mpirun.
Json name_of(RankOutcome const& rank) {
  Json fields{{"pid", rank.pid}};
  if (rank.title.empty()) {
    fields["rank"] = rank.rank.value();
    if (rank.replacement > 0) fields["replacement"] = rank.replacement;
    if (rank.device) fields["device"] = text(*rank.device);
    add_text(fields, "gpu", rank.gpu);
    add_text(fields, "host", rank.host);
  } else {
    fields["title"] = rank.title;
  }
  return fields;
}

Json facts_of(RankOutcome const& rank, std::size_t size) {
  Json fields = name_of(rank);
  if (rank.ended && rank.signal != 0) {
    fields["signal"] = rank.signal;
    fields["signal_name"] = signal_name(rank.signal);
    fields["core_dumped"] = rank.core_dumped;
  } else if (rank.ended) {
    fields["exit_code"] = rank.exit_code;
  }
  fields["failed"] = failed(rank);
  fields["words"] = rank.ended || rank.exec_error != 0 ? describe_end(rank, size) : "did not end";
  fields["joined"] = rank.joined;
  fields["left"] = rank.left;
  fields["killed_by_launcher"] = rank.killed_by_launcher;
  if (rank.survived) fields["survived"] = true;
  if (rank.error) {
    fields["error"] = Json::parse(failure_json(rank.error->failure));
    fields["error"]["code"] = rank.error->code;
  }
  if (rank.oom) {
    fields["oom_kills"] = {{"file", rank.oom->before.file},
                           {"before", rank.oom->before.count},
                           {"after", rank.oom->after},
                           {"seconds", rank.oom->within.count()}};
  }
  if (rank.progress) fields["progress"] = to_string(*rank.progress);
  add_text(fields, "last_collective", rank.last_collective);
  if (!rank.last_stderr.empty()) fields["last_stderr"] = rank.last_stderr;
  if (rank.out_problem.empty()) add_text(fields, "out_file", rank.out_file);
  if (rank.err_problem.empty()) add_text(fields, "err_file", rank.err_file);
  return fields;
}

void add_report(Json& fields, JobOutcome const& job) {
  std::size_t const size = job.ranks.size();
  fields["exit_code"] = job_exit_code(job);
  if (job.forwarded_signal != 0) fields["stopped_by"] = signal_name(job.forwarded_signal);
  auto const cause = named_cause(job);
  if (cause) fields["first_cause"] = facts_of(job.ranks[*cause], size);
  fields["ranks"] = Json::array();
  for (RankOutcome const& rank : job.ranks) fields["ranks"].push_back(facts_of(rank, size));
  for (RankOutcome const& rank : job.lost) fields["replaced"].push_back(facts_of(rank, size));
  if (job.difference) fields["difference"] = *job.difference;
  add_text(fields, "flight_files", job.flight_files);
}

}  // namespace

/// Defined here to keep JSON's headers out of event_log.hpp.
struct EventLog::Fields {
  Json values;
};

EventLog::EventLog(std::string const& path, std::string job_id, Console& console)
    : path_(path), job_id_(std::move(job_id)), console_(&console), began_(std::chrono::steady_clock::now()) {
  auto opened = open_own_file(AT_FDCWD, path, true, geteuid());
  if (!opened.file) {
    throw ExitError(exit_code::kCannotCreate,
                    text("--events ", path, ": ", opened.problem,
                         "; expected a regular file of your own with no other name, or none yet"));
  }
  file_ = std::move(opened.file);
}

void EventLog::start(Plan const& plan) {
  Json devices = Json::array();
  for (PlannedRank const& rank : plan.ranks) {
    if (plan.mpi_ranks) break;  // each host chooses its own
    Json device{{"rank", rank.rank.value()}, {"device", text(rank.device)}};
    add_text(device, "gpu", rank.gpu.value);
    add_text(device, "gpu_name", rank.gpu_name);
    devices.push_back(std::move(device));
  }
  Json fields{{"host", plan.host},
              {"pid", getpid()},
              {"engine", plan.mpi_ranks ? "mpi" : "local"},
              {"size", plan.world_size()},
              {"program", plan.program},
              {"command", plan.command},
              {"devices", std::move(devices)},
              {"max_restarts", plan.max_restarts}};
  if (plan.min_ranks) fields["min_ranks"] = *plan.min_ranks;
  if (plan.replacements > 0) fields["replacements"] = plan.replacements;
  add_text(fields, "log_dir", plan.log_dir.value_or(""));
  write("start", {std::move(fields)});
}

void EventLog::rank_up(RankOutcome const& rank) { write("rank_up", {name_of(rank)}); }

void EventLog::rank_joined(RankOutcome const& rank) { write("rank_joined", {name_of(rank)}); }

void EventLog::step(RankOutcome const& rank) {
  Json fields = name_of(rank);
  fields["progress"] = to_string(*rank.progress);
  fields["step"] = rank.progress->steps;
  if (auto const& pace = rank.progress->pace) {
    fields["step_ms"] = pace->step_ms;
    fields["slowest"] = pace->slowest.value();
    fields["late_ms"] = pace->late_ms;
  }
  write("step", {std::move(fields)});
}

void EventLog::failure(RankOutcome const& rank, std::size_t size) {
  Json fields = facts_of(rank, size);
  fields["consequence"] = is_consequence(rank);
  write("failure", {std::move(fields)});
}

void EventLog::rebuild(Membership const& membership) {
  Json ranks = Json::array();
  for (Rank const rank : membership.ranks) ranks.push_back(rank.value());
  write("rebuild", {Json{{"membership", membership.number}, {"ranks", std::move(ranks)}}});
}

void EventLog::restart(JobOutcome const& failed, int generation, std::chrono::milliseconds delay) {
  generation_ = generation;
  Json fields{{"delay", seconds(delay)}};
  add_report(fields, failed);
  write("restart", {std::move(fields)});
}

void EventLog::end(JobOutcome const& job, std::string const& last_words) {
  Json fields{{"seconds", seconds_since(began_)}};
  add_report(fields, job);
  add_text(fields, "message", last_words);
  write("end", {std::move(fields)});
}

void EventLog::end(int exit_code, std::string const& why) {
  write("end", {Json{{"seconds", seconds_since(began_)},
                     {"exit_code", exit_code},
                     {"ranks", Json::array()},
                     {"message", why}}});
}

void EventLog::write(char const* event, Fields const& fields) {
  if (!file_) return;
  auto const now = std::chrono::system_clock::now();
  auto const since_1970 = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  Json line{{"event", event},
            {"time", utc_text(now)},
            {"unix_time", seconds(since_1970)},
            {"job", job_id_},
            {"generation", generation_}};
  line.update(fields.values);
  std::string const bytes = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  ssize_t count = 0;
  do {
    count = ::write(file_.get(), bytes.data(), bytes.size());
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(bytes.size())) return;
  console_->say(text("warning: cannot write --events ", path_, ": ",
                     count < 0 ? std::strerror(errno) : "no room for a whole line", "; no more events"));
  file_.reset();
}

}  // namespace ddp::launcher
