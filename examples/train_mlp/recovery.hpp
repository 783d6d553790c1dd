// What a training does so that it can go on after an end.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddp/checkpoint/checkpoint.hpp"
#include "ddp/parallel/stop_signal.hpp"
#include "ddp/parallel/world.hpp"
#include "train_mlp/options.hpp"
#include "train_mlp/progress.hpp"

namespace train_mlp {

/// Why a run ends before its training does.
struct EarlyEnd {
  int exit_code = 0;
  std::string message;
};

/// Checkpoints as the options have them; without --checkpoint it does nothing. Every member is collective,
/// and comes out alike on every rank.
class Recovery {
 public:
  /// `choices`: what must be the same for a training to be continued, by name.
  Recovery(ddp::World const& world, Options const& options, std::map<std::string, std::string> choices,
           Progress& progress);

  /// Opens the folder and restores what --resume asks for.
  [[nodiscard]] std::optional<EarlyEnd> begin(ddp::CheckpointTensors const& tensors);
  /// In World::rebuild(): restores what was saved last, into tensors that are new. Returns its position.
  /// Throws ddp::Error if there is nothing.
  [[nodiscard]] ddp::TrainingPosition const& go_back(ddp::CheckpointTensors const& tensors);
  /// Where training goes on; zeros if it begins.
  [[nodiscard]] ddp::TrainingPosition const& position() const noexcept { return position_; }

  /// Whether something is to be saved behind this step, which may be the last of an epoch, or of all.
  [[nodiscard]] bool due(std::uint64_t step, bool epoch_ends, bool training_ends);
  /// Begins to save. Says why to stop, if it is to be.
  [[nodiscard]] std::optional<EarlyEnd> save(ddp::TrainingPosition position);
  /// Before steps: saves anew if ranks were lost, since what was being written may be lost with them, and at
  /// the start if go_back() needs something.
  [[nodiscard]] std::optional<EarlyEnd> go_on(ddp::TrainingPosition const& position);
  /// Behind the last step: waits until all is on the disk.
  [[nodiscard]] std::optional<EarlyEnd> finish();

 private:
  ddp::World const& world_;
  Options const& options_;
  std::map<std::string, std::string> choices_;
  Progress& progress_;
  std::optional<ddp::Checkpoint> checkpoint_;
  std::optional<ddp::StopSignal> stop_;
  std::optional<int> stopped_by_;
  int membership_ = world_.membership();  // for which go_on() was called last
  ddp::TrainingPosition position_;
};

}  // namespace train_mlp
