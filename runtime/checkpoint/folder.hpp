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

/// Held by one process at a time, which locks the file ".lock" in it; who may not write to the folder cannot.
/// Touches only what has the names that checkpoints give.
class CheckpointFolder {
 public:
  /// Makes the folder, locks it, and removes what writers that are dead left half done. The lock is waited
  /// for until the deadline: ranks that were killed may still be on their way out.
  CheckpointFolder(std::filesystem::path path, Deadline deadline);

  /// Those that have a manifest, newest first.
  [[nodiscard]] std::vector<CheckpointName> complete() const;

  /// The newest whose checksums hold, less those refused before. Adds to `refused` what is newer and damaged,
  /// with reasons, and remembers them. Throws Error(io) if all there are are damaged.
  [[nodiscard]] std::optional<CheckpointManifest> newest_good(std::vector<std::string>& refused);

  /// `name` is complete: `latest` leads to it. What goes wrong here is logged: the checkpoint itself is safe.
  void lead_to(CheckpointName const& name) noexcept;
  /// Of the good ones the newest `keep` stay. What goes wrong is logged.
  void prune(std::size_t keep) noexcept;
  /// Removes what was written of a checkpoint that did not become one. Never throws.
  void discard(CheckpointName const& name) noexcept;

 private:
  void lock(Deadline deadline);
  void clean();
  void remove(CheckpointName const& name);

  std::filesystem::path path_;
  FileDescriptor lock_;
  std::set<std::uint64_t> refused_;
};

/// The manifest of one checkpoint, its own checksum checked.
[[nodiscard]] CheckpointManifest read_manifest(std::filesystem::path const& checkpoint);

}  // namespace ddp
