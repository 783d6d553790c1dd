// What ran when on one rank, as a timeline for https://ui.perfetto.dev.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/dtype.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// Collects the spans of one rank and writes them, in Chrome's trace event format, when its last owner is
/// destroyed. Any thread.
class ChromeTrace {
 public:
  /// Its times are shifted to wall clock time when traces are merged.
  using Clock = std::chrono::steady_clock;
  /// A row of the timeline: one stream, one thread.
  using Track = Id<struct TraceTrackTag>;

  /// One bar of the timeline.
  struct Span {
    Track track;                   ///< the row that it is on
    std::string name;              ///< "bucket 3"
    std::string category{};        ///< by which viewers filter
    Clock::time_point begin{};     ///< when it began
    Clock::time_point end{};       ///< when it ended
    Bytes bytes{};                 ///< 0: not shown
    std::optional<DType> dtype{};  ///< nullopt: not shown
  };

  /// The first spans are kept, at most this many: about 40 MB of JSON, which a browser can still show.
  static constexpr std::size_t kMostSpans = std::size_t{1} << 18;

  /// Will write rankN.json into `folder`. Makes the folder and the file now, so that a folder that cannot be
  /// written to is an error before anything runs: throws Error(io). `process`: the rank's name in the
  /// timeline.
  ChromeTrace(std::filesystem::path const& folder, Rank rank, std::string_view process,
              std::size_t most_spans = kMostSpans);
  /// Writes the file; a failure is logged.
  ~ChromeTrace();
  ChromeTrace(ChromeTrace const&) = delete;
  ChromeTrace& operator=(ChromeTrace const&) = delete;

  /// A row for spans. Spans of one row nest or follow each other.
  [[nodiscard]] Track add_track(std::string_view name);
  /// Keeps a span, or only counts it if the limit is reached. Throws Error(invalid_argument) for another
  /// trace's track.
  void add(Span span);

  /// Whether spans are to be recorded: on at first. For programs that want the timeline of a few steps.
  void record(bool on) noexcept { recording_.store(on, std::memory_order_relaxed); }
  /// Whether spans are kept now.
  [[nodiscard]] bool recording() const noexcept { return recording_.load(std::memory_order_relaxed); }

  /// Writes what has been recorded so far. Throws Error(io).
  void write() const;
  /// The path of the file.
  [[nodiscard]] std::filesystem::path const& file() const noexcept { return file_; }

 private:
  std::filesystem::path file_;
  Rank rank_;
  std::string process_;
  long maker_;  // the number of the process that made it: a forked child writes nothing
  std::size_t most_spans_;
  Clock::time_point origin_;  // where the file's time begins
  std::int64_t origin_unix_ns_ = 0;
  std::atomic<bool> recording_{true};
  mutable std::mutex mutex_;  // of what follows
  std::vector<std::string> tracks_;
  std::vector<Span> spans_;
  std::size_t dropped_ = 0;
};

}  // namespace ddp
