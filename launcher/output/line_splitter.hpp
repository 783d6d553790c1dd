// The lines of a stream of bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "ddp/core/ids.hpp"

namespace ddp::launcher {

/// Cuts a stream into whole lines. Lines longer than kMaxLine are cut there.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLine = (64_KiB).value;

  enum class End {
    newline,          ///< "\n" or "\r\n"
    carriage_return,  ///< "\r": a line that the next one will overwrite, like a progress bar's
    late_newline,     ///< the "\n" of an "\r\n" whose "\r" was already reported; the text is empty
    cut,              ///< too long, or the stream ended
  };
  /// Gets the line without its end.
  using Sink = std::function<void(std::string_view text, End end)>;

  void feed(std::string_view bytes, Sink const& sink);
  /// The stream has ended: reports what is left.
  void finish(Sink const& sink);

 private:
  std::string partial_;
  bool after_carriage_return_ = false;
};

/// Puts the time in front of each line of one stream (--timestamps).
class LineStamper {
 public:
  static constexpr std::size_t kWidth = std::string_view("2026-01-31T12:00:00.123Z ").size();

  /// `bytes` with "2026-01-31T12:00:00.123Z " in front of each line that begins in them; `now` is when they
  /// arrived. "\r" begins no line: a progress bar keeps the time at which it began.
  [[nodiscard]] std::string stamp(std::string_view bytes, std::chrono::system_clock::time_point now);

 private:
  bool at_beginning_ = true;
};

}  // namespace ddp::launcher
