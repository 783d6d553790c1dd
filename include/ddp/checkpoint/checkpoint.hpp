// Checkpoints: what a training needs to continue later, written while it runs, read when it starts again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/checkpoint/checkpoint_tensors.hpp"
#include "ddp/core/export.hpp"
#include "ddp/parallel/world.hpp"

namespace DDP_EXPORT ddp {

/// How far training has come. Equal on every rank, except `metadata`, of which rank 0's is written.
struct TrainingPosition {
  std::uint64_t step = 0;     ///< optimizer steps made
  std::uint64_t epoch = 0;    ///< for DistributedSampler::set_epoch()
  std::uint64_t samples = 0;  ///< seen of this epoch by all ranks, for DistributedSampler::resume_at()
  std::map<std::string, std::string> metadata{};  ///< the program's own, UTF-8
};

/// What restore() found.
struct RestoredCheckpoint {
  std::string name;                  ///< "000007-step-120"
  TrainingPosition position;         ///< where training stood
  int ranks = 0;                     ///< how many wrote it; now there may be more or fewer
  bool rank_tensors = false;         ///< whether this rank's own tensors were among them, and are restored
  std::vector<std::string> refused;  ///< newer checkpoints that are damaged, each with the reason
};

/// How checkpoints are kept.
struct CheckpointOptions {
  /// How many good checkpoints stay, at least 1; older ones are removed when a new one is complete.
  std::size_t keep = 2;
  /// For each wait for other ranks, and for the writing of one checkpoint; 0 is the world's timeout.
  std::chrono::milliseconds timeout{0};
};

/// Writes checkpoints of one training to a folder that all ranks share, and reads the newest complete one.
///
/// A checkpoint is a folder NUMBER-step-STEP with safetensors files. It exists once its manifest.json does,
/// with sizes and SHA-256 of all files: that is renamed into place when all ranks have written their files
/// and everything is flushed to the disk. So a process that is killed at any moment leaves the old checkpoint
/// or the new one, never a mixture. The link `latest` points to the newest that is not damaged, for people
/// and scripts.
///
/// When its World was rebuilt, the next call goes on with the ranks that are left; the first of them then
/// holds the folder. If a checkpoint was being written, and is not complete, and no wait() has thrown that,
/// this call does, once, on all ranks: Error(io). With a sharded optimizer it throws Error(unsupported).
///
/// In a process that stands for a lost rank (World::is_newcomer()) it touches no folder until the others have
/// taken that in: restore() finds nothing, since the values come from them, and save() throws
/// Error(invalid_state).
///
/// All members but newest() are collective, are called in the same order on every rank, and fail alike on
/// every rank. One thread at a time. Needs a build with OpenSSL (SHA-256), otherwise the constructor throws
/// Error(unsupported).
class Checkpoint {
 public:
  using Options = CheckpointOptions;  ///< How checkpoints are kept.

  /// Makes the folder if it is not there (a relative one where the process is now), locks it for this job,
  /// and removes unfinished files of writers that were killed. Checks that every rank has the same model and
  /// optimizer tensors, and that the parts of sharded ones are all elements, each once. Throws Error(io)
  /// naming file and reason, Error(invalid_state) if another job writes there, CommError(mismatch),
  /// Error(invalid_argument).
  Checkpoint(World world, std::filesystem::path const& folder, CheckpointTensors tensors,
             Options options = {});
  /// Waits until everything is written, and logs a failure that wait() has not thrown. If it is destroyed
  /// while an exception propagates, it gives up the writing instead.
  ~Checkpoint();
  /// The moved-from object may only be destroyed or assigned to.
  Checkpoint(Checkpoint&& other) noexcept;
  /// As the constructor. Waits for an unfinished save of this object first.
  Checkpoint& operator=(Checkpoint&& other) noexcept;

  /// The newest complete checkpoint's name, as far as this object knows; empty if there is none. restore()
  /// may still find it damaged.
  [[nodiscard]] std::string newest() const;

  /// Reads the newest checkpoint whose checksums are right into all tensors, on every rank; nullopt if the
  /// folder has none. Damaged ones are refused and logged, and the one before them is used. Nothing is
  /// changed unless all ranks can read their files. Throws Error(io) if all are damaged, and Error(mismatch)
  /// naming the tensor if names, shapes or dtypes are not those of this program. Not while something is being
  /// written.
  [[nodiscard]] std::optional<RestoredCheckpoint> restore();

  /// Copies the tensors to host memory, as they are at this point of the world's stream, and returns; a
  /// thread writes them. If the checkpoint before is still being written, waits for it first. If that one
  /// failed, throws what wait() would and saves nothing: call it again.
  void save(TrainingPosition const& position);

  /// Returns when the last save() is completely on the disk. Throws Error(io) naming rank, file and reason if
  /// any rank could not write: then the previous checkpoint is still there, and this object can still be
  /// used.
  void wait();

 private:
  class DDP_HIDDEN Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
