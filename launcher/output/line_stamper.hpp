// The time in front of each line (--timestamps).
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// One for each stream of bytes.
class LineStamper {
 public:
  /// `bytes` with "2026-01-31T12:00:00.123Z " in front of each line that begins in them; `now` is when they
  /// arrived. "\r" begins no line: a progress bar keeps the time at which it began.
  [[nodiscard]] std::string stamp(std::string_view bytes, std::chrono::system_clock::time_point now);

 private:
  bool at_beginning_ = true;
};

}  // namespace ddp::launcher
