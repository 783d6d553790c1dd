// Whether a checkpoint's files are what was written.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/manifest.hpp"

namespace ddp {

/// What is wrong with a file of a checkpoint, by its record: its size, or its SHA-256. "" if nothing. Throws
/// Error(io) if it cannot be read.
[[nodiscard]] std::string damage(std::filesystem::path const& checkpoint, CheckpointFileRecord const& record);

}  // namespace ddp
