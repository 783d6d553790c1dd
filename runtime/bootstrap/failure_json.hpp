// A failure's fields as JSON, in error files and events.
#pragma once

#include <optional>
#include <string>

#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// An object with "code", "message" (the sentence), "manner", and of "ranks", "host", "status", "operation",
/// "by", "waited_ms", "detail" and "ended_by" those that are known.
[[nodiscard]] std::string failure_json(Failure const& failure);

/// Reads what failure_json() writes. If an object has nothing but a message, as another program may write it,
/// that becomes the failure's detail. nullopt for no object, and for a field of the wrong type.
[[nodiscard]] std::optional<Failure> read_failure_json(std::string const& words);

/// Writes {"rank", "code", "message", …, "pid", "time"} as JSON to `path`: all of it or nothing (L8). The
/// message is a sentence, and the failure's fields follow it; time is UTC,
/// "2026-01-31T12:00:00.123Z". An earlier error of this rank is replaced. Nothing when `path` is empty. Logs
/// what goes wrong, never throws.
void write_error_file(std::string const& path, Rank rank, Failure const& failure) noexcept;

}  // namespace ddp
