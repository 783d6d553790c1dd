// Trainings that write checkpoints into a folder of their own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "support/launcher/shell.hpp"
#include "support/models/checkpoint_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {

inline std::set<std::string> names_in(std::filesystem::path const& folder) {
  std::set<std::string> names;
  for (auto const& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

class CheckpointRuns : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path folder() const { return folder_.path() / "run" / "checkpoints"; }

  /// One checkpoint for each seed, at step 10 · seed.
  void write(int ranks, std::vector<int> const& seeds, CheckpointOptions options = {}) const {
    on_ranks(ranks, [&](World const& world) {
      CheckpointModel model;
      Checkpoint checkpoint(world, folder(), model.tensors(), options);
      for (int const seed : seeds) {
        model.fill(seed, world.rank().value());
        checkpoint.save({static_cast<std::uint64_t>(10 * seed), 3, 128, {{"note", "größer"}}});
      }
      checkpoint.wait();
    });
  }

  TemporaryFolder folder_;
};

}  // namespace ddp::testing
