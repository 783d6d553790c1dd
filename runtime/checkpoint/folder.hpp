// The folder of a training's checkpoints, as rank 0 keeps it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/durable_file.hpp"
#include "checkpoint/folder_lock.hpp"
#include "checkpoint/manifest.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp {

/// Held by one process at a time, by its FolderLock. Touches only files whose names checkpoints use.
class CheckpointFolder {
 public:
  /// Makes the folder, locks it, and removes what dead writers left unfinished. Waits for the lock until the
  /// deadline, since ranks that were killed may not have ended yet.
  CheckpointFolder(std::filesystem::path path, Deadline deadline);

  /// The checkpoints that have a manifest, newest first.
  [[nodiscard]] std::vector<CheckpointName> complete() const;

  /// The newest whose checksums hold. Adds newer, damaged ones to `refused`, with reasons, and remembers
  /// them. Throws Error(io) if all that are there are damaged.
  [[nodiscard]] std::optional<CheckpointManifest> newest_good(std::vector<std::string>& refused);

  /// Makes `latest` lead to `name`, which is complete. An error is only logged, the first one: the
  /// checkpoint itself is safe, and some file systems have no symbolic links.
  void lead_to(CheckpointName const& name) noexcept;
  /// Removes all but the newest `keep` good ones. Errors are logged.
  void prune(std::size_t keep) noexcept;
  /// Removes what was written of a checkpoint that failed. Never throws.
  void discard(CheckpointName const& name) noexcept;
  /// Removes what writers left unfinished that have ended.
  void clean();

 private:
  std::filesystem::path path_;
  std::unique_ptr<FolderLock> lock_;
  std::set<std::uint64_t> refused_;
  bool said_no_link_ = false;
};

/// SHA-256 of a file from where `file` stands to its end. Throws Error(aborted) soon after `cancelled`.
[[nodiscard]] std::string hash_of(SequentialReader& file, std::atomic<bool> const* cancelled = nullptr);

/// The manifest of one checkpoint, its own checksum checked.
[[nodiscard]] CheckpointManifest read_manifest(std::filesystem::path const& checkpoint);

}  // namespace ddp
