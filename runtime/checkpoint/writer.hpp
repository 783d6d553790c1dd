// The thread that writes one checkpoint to the disk, together with those of the other ranks.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/folder.hpp"
#include "checkpoint/snapshot.hpp"
#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// The ranks that write and read checkpoints together.
struct CheckpointGroup {
  std::shared_ptr<ControlPlane> control;
  std::vector<Rank> members;  ///< ranks of the job
  std::string name;           ///< prefix of control-plane keys
  std::chrono::milliseconds timeout{};

  struct Failure {
    std::size_t rank = 0;
    ErrorCode code = ErrorCode::io;
    std::string reason;
  };
  struct Outcome {
    std::vector<std::string> results;  ///< in rank order
    std::optional<Failure> failure;    ///< of the first rank that failed
  };
  /// Calls `action` on every rank. The outcome is the same on all of them. Throws CommError if a rank does
  /// not come, soon if `given_up` is set meanwhile.
  [[nodiscard]] Outcome on_all(std::string const& what, std::function<std::string()> const& action,
                               std::atomic<bool> const* given_up = nullptr) const;

 private:
  [[nodiscard]] std::vector<std::string> exchange(std::string_view what, std::string_view word,
                                                  std::atomic<bool> const* given_up) const;
};

struct CheckpointTask {
  CheckpointGroup group;
  std::filesystem::path path;  ///< of all checkpoints
  CheckpointName name;
  TrainingPosition position;
  std::size_t keep = 1;
  std::shared_ptr<CheckpointFolder> folder;  ///< rank 0's; null on others
  struct File {
    std::string name;
    std::shared_ptr<CheckpointSnapshot const> snapshot;
  };
  std::vector<File> files;      ///< that this rank writes
  std::optional<File> divided;  ///< that all ranks write together
};

/// A checkpoint being written. Its thread shares ownership of all it uses, so that a disk that hangs holds
/// nobody up for ever.
class CheckpointWriter {
 public:
  /// `before`, a complete one, is destroyed by the thread, so that the caller does not wait for it.
  explicit CheckpointWriter(CheckpointTask task, std::unique_ptr<CheckpointWriter> before = nullptr);
  /// If it is complete, waits until older ones are removed. Otherwise gives up: within a moment, unless the
  /// disk hangs.
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter const&) = delete;
  CheckpointWriter& operator=(CheckpointWriter const&) = delete;

  /// Waits until it is complete. Throws what went wrong, the same on every rank; CommError(timeout) after the
  /// deadline.
  void wait(Deadline deadline);

 private:
  struct Shared;
  static void run(Shared& shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp
