// The folder of a training's checkpoints, as rank 0 keeps it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "core/system/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp {

/// Held by one process at a time, which locks the file ".lock" in it; only those who may write to the folder
/// can. Touches only files whose names checkpoints use.
class CheckpointFolder {
 public:
  /// Makes the folder, locks it, and removes what dead writers left unfinished. Waits for the lock until the
  /// deadline, since ranks that were killed may not have ended yet.
  CheckpointFolder(std::filesystem::path path, Deadline deadline);

  /// Those that have a manifest, newest first.
  [[nodiscard]] std::vector<CheckpointName> complete() const;

  /// The newest whose checksums hold. Adds newer, damaged ones to `refused`, with reasons, and remembers
  /// them. Throws Error(io) if all that are there are damaged.
  [[nodiscard]] std::optional<CheckpointManifest> newest_good(std::vector<std::string>& refused);

  /// Makes `latest` lead to `name`, which is complete. Errors are only logged: the checkpoint itself is safe.
  void lead_to(CheckpointName const& name) noexcept;
  /// Removes all but the newest `keep` good ones. Errors are logged.
  void prune(std::size_t keep) noexcept;
  /// Removes what was written of a checkpoint that failed. Never throws.
  void discard(CheckpointName const& name) noexcept;

 private:
  void lock(Deadline deadline);
  void clean();

  std::filesystem::path path_;
  FileDescriptor lock_;
  std::set<std::uint64_t> refused_;
};

/// The manifest of one checkpoint, its own checksum checked.
[[nodiscard]] CheckpointManifest read_manifest(std::filesystem::path const& checkpoint);

}  // namespace ddp
