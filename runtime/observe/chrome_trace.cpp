#include "ddp/observe/chrome_trace.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

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

}  // namespace

ChromeTrace::ChromeTrace(fs::path const& folder, Rank rank, std::string_view process, std::size_t most_spans)
    : file_(fs::path(absolute_path(folder)) / text("rank", rank, ".json")),
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
  // A span stands before those that it contains. clang warns of libstdc++ 12's own stable_sort.
  std::sort(ordered.begin(), ordered.end(), [](Span const* a, Span const* b) {
    if (a->begin != b->begin) return a->begin < b->begin;
    return a->end != b->end ? a->end > b->end : a < b;
  });

  OwnFileStream out;
  out.open(file_);
  Json const about{{"rank", rank_.value()}, {"unix_ns", origin_unix_ns_}, {"dropped", dropped_}};
  out << R"({"displayTimeUnit": "ms", "otherData": )" << about << R"(, "traceEvents": [)";
  char const* before = "\n";
  // Written event by event, so that a trace of any length is never one tree in memory.
  auto const add = [&](Json const& event) {
    out << std::exchange(before, ",\n") << event.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  add(about_event("process_name", rank_, 0, {{"name", process_}}));
  add(about_event("process_sort_index", rank_, 0, {{"sort_index", rank_.value()}}));
  for (std::size_t track = 1; track < used.size(); ++track) {
    if (!used[track]) continue;
    add(about_event("thread_name", rank_, static_cast<int>(track), {{"name", tracks_[track - 1]}}));
  }
  for (Span const* span : ordered) add(span_event(*span, rank_, origin_));
  out << "\n]}\n" << std::flush;
  if (!out) throw_errno(text("writing the trace ", file_), errno);
}

}  // namespace ddp
