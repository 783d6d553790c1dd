// Points in time as text.
#pragma once

#include <chrono>
#include <string>

namespace ddp {

/// UTC to the millisecond, "2026-01-31T12:00:00.123Z": texts of later times compare greater.
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point time);

}  // namespace ddp
