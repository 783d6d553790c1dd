#include "ddp/core/log.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/suggestion.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames{"error", "warning", "info", "debug"};

/// Does nothing in a rank of ddp-launch, which has said it already.
void warn_of_unknown_level(std::string_view chosen) noexcept try {
  if (std::getenv("DDP_CONTROL") != nullptr) return;
  std::vector<std::string> const known(kLevelNames.begin(), kLevelNames.end());
  auto const meant = nearest(chosen, known);
  log_line("warning", text("DDP_LOG=", chosen, ": expected ", join(known, ", "), "; \"warning\" is used",
                           meant ? "; did you mean " + *meant + "?" : ""));
} catch (...) {  // out of memory: as in log_line()
}

LogLevel threshold() noexcept {
  static LogLevel const level = [] {
    char const* chosen = std::getenv("DDP_LOG");
    for (std::size_t i = 0; chosen != nullptr && i < kLevelNames.size(); ++i) {
      if (kLevelNames[i] == chosen) return static_cast<LogLevel>(i);
    }
    if (chosen != nullptr) warn_of_unknown_level(chosen);
    return LogLevel::warning;
  }();
  return level;
}

}  // namespace

bool log_enabled(LogLevel level) noexcept { return level <= threshold(); }

void log_line(std::string_view kind, std::string_view message) noexcept {
  try {
    std::string line = "[ddp] ";
    line.append(kind).append(": ").append(message).append("\n");
    [[maybe_unused]] auto const written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // out of memory: a lost log line must not become a failure
  }
}

void log(LogLevel level, std::string_view message) noexcept {
  if (log_enabled(level)) log_line(kLevelNames[static_cast<std::size_t>(level)], message);
}

}  // namespace ddp
