#include "ddp/observe/chrome_trace.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/parse_number.hpp"
#include "core/system/absolute_path.hpp"
#include "core/system/own_file.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = ChromeTrace::Clock;
using std::chrono::nanoseconds;

// Written event by event, so that a trace of any length is never one tree in memory.
class TraceFile {
 public:
  TraceFile(fs::path const& file, Json const& about) : file_(file) {
    out_.open(file);
    out_ << R"({"displayTimeUnit": "ms", "otherData": )" << about << R"(, "traceEvents": [)";
  }
  void add(Json const& event) {
    out_ << (first_ ? "\n" : ",\n") << event.dump(-1, ' ', false, Json::error_handler_t::replace);
    first_ = false;
  }
  void close() {
    out_ << "\n]}\n" << std::flush;
    if (!out_) throw_errno(text("writing the trace ", file_), errno);
  }

 private:
  fs::path file_;
  OwnFileStream out_;
  bool first_ = true;
};

// The Unix time, and the same `moment` on the steady clock: of several readings, the quickest.
std::int64_t unix_ns(Clock::time_point& moment) {
  constexpr int kReadings = 5;
  nanoseconds shortest = nanoseconds::max();
  std::int64_t result = 0;
  for (int i = 0; i < kReadings; ++i) {
    auto const before = Clock::now();
    auto const wall = std::chrono::system_clock::now().time_since_epoch();
    auto const after = Clock::now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    moment = before + (after - before) / 2;
    result = std::chrono::duration_cast<nanoseconds>(wall).count();
  }
  return result;
}

double in_microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

Json about_event(char const* what, Rank rank, int thread, Json const& arguments) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank.value()}, {"tid", thread}, {"args", arguments}};
}

Json span_event(ChromeTrace::Span const& span, Rank rank, Clock::time_point origin) {
  Json event{{"name", span.name},
             {"cat", span.category},
             {"ph", "X"},
             {"pid", rank.value()},
             {"tid", span.track.value()},
             {"ts", in_microseconds(span.begin - origin)},
             {"dur", in_microseconds(span.end - span.begin)}};
  if (span.bytes.value != 0) event["args"]["bytes"] = span.bytes.value;
  if (span.dtype) event["args"]["dtype"] = std::string(to_string(*span.dtype));
  return event;
}

fs::path file_of(fs::path const& folder, Rank rank) { return folder / text("rank", rank, ".json"); }

// The rank whose file this is, by its name.
std::optional<Rank> rank_of(fs::path const& file) {
  std::string const name = file.stem().string();
  auto const rank = name.starts_with("rank") ? parse_number<int>(name.substr(4)) : std::nullopt;
  if (!rank || *rank < 0 || file_of("", Rank(*rank)) != file.filename()) return std::nullopt;
  return Rank(*rank);
}

std::vector<Rank> ranks_in(fs::path const& folder) {
  std::error_code failure;
  std::vector<Rank> ranks;
  for (fs::directory_entry const& entry : fs::directory_iterator(folder, failure)) {
    if (auto const rank = rank_of(entry.path())) ranks.push_back(*rank);
  }
  if (failure) throw_errno(text("reading the folder ", folder), failure.value());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::int64_t origin_of(Json const& trace) { return trace["otherData"]["unix_ns"].get<std::int64_t>(); }

// A rank's file, checked to have what a merge needs.
Json read_trace(fs::path const& file) {
  std::error_code unknown;
  require(fs::is_regular_file(file, unknown) || unknown, [&] { return text(file, " is no regular file"); });
  Classic<std::ifstream> in(file, std::ios::binary);
  if (!in) throw_errno(text("reading the trace ", file), errno);
  Json trace = Json::parse(in, nullptr, false);
  Json::json_pointer const origin("/otherData/unix_ns");
  Json::json_pointer const events("/traceEvents");
  require(trace.contains(origin) && trace[origin].is_number_integer() && trace.contains(events) &&
              trace[events].is_array(),
          [&] { return text(file, " is no trace that this library wrote (or was not written to its end)"); });
  return trace;
}

}  // namespace

ChromeTrace::ChromeTrace(fs::path const& folder, Rank rank, std::string_view process, std::size_t most_spans)
    : file_(file_of(absolute_path(folder), rank)),
      rank_(rank),
      process_(process),
      maker_(::getpid()),
      most_spans_(most_spans),
      origin_unix_ns_(unix_ns(origin_)) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw_errno(text("making the folder ", folder, " for traces"), failure.value());
  write();
}

ChromeTrace::~ChromeTrace() {
  if (maker_ != ::getpid()) return;
  try {
    write();
    if (dropped_ != 0) {
      log(LogLevel::warning, text(file_, ": the first ", most_spans_, " spans are kept, ", dropped_,
                                  " later ones are not; trace fewer steps"));
    }
  } catch (std::exception const& error) {
    log(LogLevel::error, text("the trace is lost: ", error.what()));
  }
}

ChromeTrace::Track ChromeTrace::add_track(std::string_view name) {
  std::lock_guard const lock(mutex_);
  tracks_.emplace_back(name);
  return Track(static_cast<int>(tracks_.size()));
}

void ChromeTrace::add(Span span) {
  std::lock_guard const lock(mutex_);
  require(span.track.value() >= 1 && span.track.index() <= tracks_.size(), [&] {
    return text("there is no track ", span.track, " in ", file_, "; use what add_track() gave");
  });
  if (spans_.size() == most_spans_) {
    ++dropped_;
    return;
  }
  spans_.push_back(std::move(span));
}

void ChromeTrace::write() const {
  std::lock_guard const lock(mutex_);
  std::vector<Span const*> ordered;
  std::vector<bool> used(tracks_.size() + 1);
  for (Span const& span : spans_) {
    ordered.push_back(&span);
    used[span.track.index()] = true;
  }
  // A span stands before those that it contains.
  std::stable_sort(ordered.begin(), ordered.end(), [](Span const* a, Span const* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
  });

  TraceFile out(file_, {{"rank", rank_.value()}, {"unix_ns", origin_unix_ns_}, {"dropped", dropped_}});
  out.add(about_event("process_name", rank_, 0, {{"name", process_}}));
  out.add(about_event("process_sort_index", rank_, 0, {{"sort_index", rank_.value()}}));
  for (std::size_t track = 1; track < used.size(); ++track) {
    if (!used[track]) continue;
    out.add(about_event("thread_name", rank_, static_cast<int>(track), {{"name", tracks_[track - 1]}}));
  }
  for (Span const* span : ordered) out.add(span_event(*span, rank_, origin_));
  out.close();
}

std::vector<Rank> merge_chrome_traces(fs::path const& folder, fs::path const& merged) {
  std::vector<Rank> const ranks = ranks_in(folder);
  if (ranks.empty()) {
    throw Error(ErrorCode::not_found,
                text("there is no trace in ", folder, ": expected rank0.json, rank1.json …"));
  }
  // Twice through the files, so that only one is in memory at a time.
  std::int64_t first_origin = std::numeric_limits<std::int64_t>::max();
  for (Rank const rank : ranks) {
    first_origin = std::min(first_origin, origin_of(read_trace(file_of(folder, rank))));
  }
  TraceFile out(merged, {{"ranks", ranks.size()}, {"unix_ns", first_origin}});
  for (Rank const rank : ranks) {
    Json trace = read_trace(file_of(folder, rank));
    double const shift = static_cast<double>(origin_of(trace) - first_origin) / 1e3;
    for (Json& event : trace["traceEvents"]) {
      if (event.is_object() && event.contains("ts") && event["ts"].is_number())
        event["ts"] = event["ts"].get<double>() + shift;
      out.add(event);
    }
  }
  out.close();
  return ranks;
}

}  // namespace ddp
