// Log lines on stderr. DDP_LOG=error|warning|info|debug chooses (default: warning).
#pragma once

#include <string_view>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

enum class LogLevel { error, warning, info, debug };

/// Whether a line of this level would be printed. Thread-safe.
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;

/// Writes "[ddp] warning: message\n" to stderr as one write. Thread-safe, never throws.
void log(LogLevel level, std::string_view message) noexcept;

/// Writes "[ddp] kind: message\n" at every setting of DDP_LOG: for lines that the program has asked for.
/// Thread-safe, never throws.
void log_line(std::string_view kind, std::string_view message) noexcept;

}  // namespace ddp
