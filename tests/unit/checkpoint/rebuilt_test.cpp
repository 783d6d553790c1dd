// Checkpoints of a World that was rebuilt after a loss (R26).
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/models/checkpoint_runs.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RebuiltCheckpoint : public CheckpointRuns {
 protected:
  /// The checkpoints, complete or not.
  [[nodiscard]] std::vector<std::string> there() const {
    std::vector<std::string> names;
    for (auto const& each : fs::directory_iterator(folder())) {
      if (each.is_directory() && !each.is_symlink()) names.push_back(each.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(RebuiltCheckpoint, R26TheRanksThatAreLeftWriteAndReadAsAnyRanksDo) {
  for (int const victim : {0, 1}) {
    fs::remove_all(folder());
    SurvivingRanks ranks(3);
    ranks.run([&](World& world) {
      int const old = world.rank().value();
      CheckpointModel model(1, old);
      Checkpoint checkpoint(world, folder(), model.tensors());
      checkpoint.save({.step = 10});
      checkpoint.wait();
      Replicated alike(world, {});
      if (old == victim) ranks.die(world);
      world.rebuild(loss_of(world), alike);
      checkpoint.wait();
      EXPECT_EQ(checkpoint.newest(), "000001-step-10");
      model.fill(2, old);
      checkpoint.save({.step = 20});
      checkpoint.wait();
      model.fill(3, old);
      auto const restored = checkpoint.restore();
      ASSERT_TRUE(restored.has_value());
      EXPECT_EQ(restored->name, "000002-step-20");
      EXPECT_EQ(restored->ranks, 2);
      EXPECT_TRUE(model.holds(2));
      world.barrier();
    });
  }
  on_ranks(4, [&](World const& world) {  // the lock has gone with the job
    CheckpointModel model(9);
    Checkpoint checkpoint(world, folder(), model.tensors());
    ASSERT_TRUE(checkpoint.restore().has_value());
    EXPECT_TRUE(model.holds(2));
  });
}

// The first rank may have made it a checkpoint before it died: the others say what is there.
TEST_F(RebuiltCheckpoint, R26ALossWhileOneIsWrittenLeavesTheOldOneOrTheNewOne) {
  for (int const victim : {0, 1, 2}) {
    fs::remove_all(folder());
    SurvivingRanks ranks(3);
    ranks.run([&](World& world) {
      int const old = world.rank().value();
      CheckpointModel model(1, old);
      Checkpoint checkpoint(world, folder(), model.tensors());
      checkpoint.save({.step = 10});
      checkpoint.wait();
      Replicated alike(world, {});
      model.fill(2, old);
      if (old == victim) ranks.die(world);  // the others' writers wait for its part
      checkpoint.save({.step = 20});
      world.rebuild(loss_of(world), alike);
      EXPECT_THAT(error_of([&] { checkpoint.wait(); }).what(),
                  HasSubstr("000002-step-20 was not written, since the World was rebuilt meanwhile"));
      EXPECT_THAT(there(), ElementsAre("000001-step-10"));
      world.barrier();
      checkpoint.save({.step = 20});  // it is said once
      checkpoint.wait();
      EXPECT_EQ(checkpoint.newest(), "000003-step-20");
      world.barrier();
    });
    EXPECT_THAT(there(), ElementsAre("000001-step-10", "000003-step-20"));
  }
}

// The other rank has given up when rank 0 has written its part; and nobody is lost, whose waits would end.
TEST_F(RebuiltCheckpoint, R26AWriterThatWasBehindDoesNotWaitForTheRanksBefore) {
  using std::chrono::milliseconds;
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    std::vector<float> large(world.rank() == 0 ? std::size_t{16} << 20 : 1);
    Checkpoint checkpoint(world, folder(), {{}, {}, {{"large", view_of(std::span(large)), {}}}, {}});
    Replicated alike(world, {});
    checkpoint.save({.step = 10});
    if (world.rank() == 0) {
      std::array const other{Rank{1}};
      auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (!world.control().waits_of(other).front().ends_with("/written") &&
             std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
      world.rebuild(CommError(ErrorCode::aborted, "given up"), alike);
    } else {
      world.rebuild(error_of<CommError>([&] { checkpoint.wait(); }), alike);
    }
    std::this_thread::sleep_for(milliseconds(700));
    auto const began = std::chrono::steady_clock::now();
    EXPECT_THAT(error_of([&] { checkpoint.wait(); }).what(), HasSubstr("was not written"));
    EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1500));
    world.barrier();
  });
}

TEST_F(RebuiltCheckpoint, R26AnotherLossBeforeItHasFollowedIsOneMore) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    CheckpointModel model(1, old);
    Checkpoint checkpoint(world, folder(), model.tensors());
    Replicated alike(world, {});
    if (old == 3) ranks.die(world);
    checkpoint.save({.step = 10});
    world.rebuild(error_of<CommError>([&] { checkpoint.wait(); }), alike);
    if (old == 0) ranks.die(world);
    world.rebuild(error_of<CommError>([&] { checkpoint.wait(); }), alike);
    checkpoint.wait();  // that it was not written has been thrown
    EXPECT_EQ(checkpoint.newest(), "");
    checkpoint.save({.step = 11});
    checkpoint.wait();
    EXPECT_EQ(checkpoint.newest(), "000002-step-11");
    world.barrier();
  });
}

// It may become the first rank, which then holds the folder in place of the one that took it before.
TEST_F(RebuiltCheckpoint, R26ANewcomerLeavesTheFolderAloneAndThenWritesWithTheOthers) {
  for (int const victim : {0, 1}) {
    fs::remove_all(folder());
    auto const write_and_read = [&](World const& world, Checkpoint& checkpoint, CheckpointModel& model) {
      int const now = world.rank().value();
      model.fill(2, now);
      checkpoint.save({.step = 20});
      checkpoint.wait();
      model.fill(3, now);
      auto const restored = checkpoint.restore();
      ASSERT_TRUE(restored.has_value());
      EXPECT_EQ(restored->name, "000002-step-20");
      EXPECT_EQ(restored->ranks, 3);
      EXPECT_TRUE(model.holds(2));
      world.barrier();
    };
    SurvivingRanks ranks(3);
    std::thread other([&] {
      ranks.newcomer(victim, [&](World& world) {
        CheckpointModel model(1, victim);
        Checkpoint checkpoint(world, folder(), model.tensors());
        EXPECT_EQ(checkpoint.newest(), "");
        EXPECT_FALSE(checkpoint.restore().has_value());
        EXPECT_EQ(error_of([&] { checkpoint.save({}); }).code(), ErrorCode::invalid_state);
        Replicated alike(world, {});
        write_and_read(world, checkpoint, model);
      });
    });
    ranks.run([&](World& world) {
      CheckpointModel model(1, world.rank().value());
      Checkpoint checkpoint(world, folder(), model.tensors());
      checkpoint.save({.step = 10});
      checkpoint.wait();
      Replicated alike(world, {});
      if (world.rank() == victim) ranks.die(world);
      world.rebuild(loss_of(world), alike);
      while (world.size() < 3) {
        try {
          checkpoint.wait();  // with those that are left
          while (!world.control().interruption()) std::this_thread::yield();
          throw CommError(ErrorCode::aborted, "a newcomer waits");
        } catch (CommError const& error) {
          world.rebuild(error, alike);
        }
      }
      write_and_read(world, checkpoint, model);
    });
    other.join();
  }
}

}  // namespace
}  // namespace ddp::testing
