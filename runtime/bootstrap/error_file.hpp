// The structured error of one rank, for the launcher's report on the job.
#pragma once

#include <string>

#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// Writes {"rank", "code", "message", …, "pid", "time"} as JSON to `path`: all of it or nothing (L8). The
/// message is a sentence, and the failure's fields follow it (failure_json.hpp); time is UTC,
/// "2026-01-31T12:00:00.123Z". An earlier error of this rank is replaced. Nothing when `path` is empty. Logs
/// what goes wrong, never throws.
void write_error_file(std::string const& path, Rank rank, Failure const& failure) noexcept;

}  // namespace ddp
