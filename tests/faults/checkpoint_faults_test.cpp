// A checkpoint and every moment at which its writer can be killed, or the disk can refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/checkpoint/checkpoint.hpp"
#include "support/fakes/file_faults.hpp"
#include "support/launcher/shell.hpp"
#include "support/models/checkpoint_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 2;
constexpr int kMostCalls = 500;  // no checkpoint makes so many

void save(Checkpoint& checkpoint, CheckpointModel& model, int seed, World const& world) {
  model.fill(seed, world.rank().value());
  checkpoint.save({.step = static_cast<std::uint64_t>(seed)});
  checkpoint.wait();
}

/// How the optimizer's tensors are written. They are always restored by a program that has them whole.
enum class Written { by_rank_0, in_parts };

std::unique_ptr<CheckpointModel> make_model(Written how, int rank) {
  auto model = std::make_unique<CheckpointModel>();
  if (how == Written::in_parts) model->divide(rank, kRanks);
  return model;
}

/// Restores on two ranks; returns the seed, the same in all tensors and the position.
int restored_seed(fs::path const& folder) {
  std::vector<int> seeds(kRanks);
  on_ranks(kRanks, [&](World const& world) {
    CheckpointModel model(90, 90);
    Checkpoint checkpoint(world, folder, model.tensors());
    auto const restored = checkpoint.restore();
    ASSERT_TRUE(restored.has_value());
    EXPECT_THAT(restored->refused, IsEmpty()) << "nothing is complete before it is whole";
    int const seed = static_cast<int>(restored->position.step);
    EXPECT_TRUE(model.holds(seed)) << "a mixture";
    EXPECT_EQ(model.random, CheckpointModel(seed, world.rank().value()).random) << "a mixture";
    seeds[world.rank().index()] = seed;
  });
  EXPECT_EQ(seeds[0], seeds[1]);
  return seeds[0];
}

/// Files and folders that are no part of a complete checkpoint.
std::vector<std::string> remains(fs::path const& folder) {
  std::vector<std::string> found;
  for (auto const& entry : fs::recursive_directory_iterator(folder)) {
    std::string const name = entry.path().filename().string();
    bool const unfinished =
        entry.is_directory() && !entry.is_symlink() && !fs::exists(entry.path() / "manifest.json");
    if (unfinished || name.ends_with(".tmp")) found.push_back(entry.path().string());
  }
  return found;
}

class CheckpointFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    on_ranks(kRanks, [&](World const& world) {
      CheckpointModel model;
      Checkpoint checkpoint(world, first(), model.tensors());
      save(checkpoint, model, 1, world);
    });
    reset();
  }
  void reset() const {
    fs::remove_all(folder());
    fs::copy(first(), folder(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }
  [[nodiscard]] fs::path first() const { return folder_.path() / "first"; }
  [[nodiscard]] fs::path folder() const { return folder_.path() / "run"; }

  /// Saves seeds 2 and 3 in a process of its own that meets the fault at its nth call; true if it was killed.
  [[nodiscard]] bool killed_at(FileFault fault, Written how, int nth) const {
    pid_t const child = ::fork();
    if (child == 0) {
      arm_file_fault(fault, nth);
      try {
        on_ranks(kRanks, [&](World const& world) {
          auto const model = make_model(how, world.rank().value());
          Checkpoint checkpoint(world, folder(), model->tensors(), {.keep = 1});
          save(checkpoint, *model, 2, world);
          save(checkpoint, *model, 3, world);
        });
      } catch (std::exception const& error) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      return true;
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return false;
  }

  TemporaryFolder folder_;
};

class KilledWriter : public CheckpointFaults,
                     public ::testing::WithParamInterface<std::pair<FileFault, Written>> {};

TEST_P(KilledWriter, F18R25LeavesTheOldCheckpointOrTheNewOneAndNothingHalf) {
  int last_seed = 1;
  int nth = 1;
  for (; nth < kMostCalls; ++nth) {
    reset();
    if (!killed_at(GetParam().first, GetParam().second, nth)) break;
    int const seed = restored_seed(folder());
    EXPECT_GE(seed, 1);
    EXPECT_LE(seed, 3);
    last_seed = std::max(last_seed, seed);
    EXPECT_THAT(remains(folder()), IsEmpty()) << "killed at call " << nth;
  }
  EXPECT_GT(nth, 60) << "calls of two checkpoints of two ranks";
  EXPECT_LT(nth, kMostCalls);
  EXPECT_EQ(last_seed, 3) << "it was killed behind the last publication too";
  EXPECT_EQ(restored_seed(folder()), 3);
}

INSTANTIATE_TEST_SUITE_P(Faults, KilledWriter,
                         ::testing::Values(std::pair(FileFault::kill, Written::by_rank_0),
                                           std::pair(FileFault::half, Written::by_rank_0),
                                           std::pair(FileFault::kill, Written::in_parts),
                                           std::pair(FileFault::half, Written::in_parts)),
                         [](auto const& tested) {
                           bool const between = tested.param.first == FileFault::kill;
                           return std::string(between ? "BetweenCalls" : "InTheMiddleOfAWrite") +
                                  (tested.param.second == Written::in_parts ? "OfParts" : "");
                         });

class FailingDisk : public CheckpointFaults, public ::testing::WithParamInterface<std::pair<int, Written>> {};

TEST_P(FailingDisk, F16R25TheOldCheckpointLoadsEveryRankIsToldAndTheNextSaveWorks) {
  auto const [error_number, how] = GetParam();
  int failures = 0;
  int nth = 1;
  for (bool happened = true; happened; ++nth) {
    ASSERT_LT(nth, kMostCalls);
    reset();
    std::vector<std::string> messages(kRanks);
    auto worlds = World::in_process(kRanks, {.timeout = std::chrono::seconds(60)});
    std::vector<std::unique_ptr<CheckpointModel>> models;
    std::vector<std::unique_ptr<Checkpoint>> checkpoints(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) models.push_back(make_model(how, rank));
    auto const on_each = [&](auto const& body) {
      run_ranks(kRanks, [&](int rank) {
        auto const r = static_cast<std::size_t>(rank);
        body(r, worlds[r], *models[r], checkpoints[r]);
      });
    };
    on_each([&](std::size_t, World const& world, CheckpointModel& model, auto& checkpoint) {
      checkpoint = std::make_unique<Checkpoint>(world, folder(), model.tensors());
    });
    arm_file_fault(FileFault::error, nth, error_number);
    on_each([&](std::size_t rank, World const& world, CheckpointModel& model, auto& checkpoint) {
      try {
        save(*checkpoint, model, 2, world);
      } catch (Error const& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        messages[rank] = error.what();
      }
    });
    happened = disarm_file_fault();
    EXPECT_EQ(messages[0], messages[1]);
    EXPECT_THAT(remains(folder()), IsEmpty());
    if (messages[0].empty()) {
      // Nothing failed, or only what a checkpoint can do without.
      EXPECT_TRUE(fs::exists(folder() / "000002-step-2" / "manifest.json"));
    } else {
      ++failures;
      EXPECT_THAT(messages[0], HasSubstr("000002-step-2 was not written: rank "));
      EXPECT_THAT(messages[0], HasSubstr(folder().string()));
      EXPECT_THAT(messages[0], HasSubstr(strerrorname_np(error_number)));
      EXPECT_FALSE(fs::exists(folder() / "000002-step-2"));
    }
    on_each([&](std::size_t, World const& world, CheckpointModel& model, auto& checkpoint) {
      if (!messages[0].empty()) {
        ASSERT_TRUE(checkpoint->restore().has_value());
        EXPECT_TRUE(model.holds(1));
      }
      save(*checkpoint, model, 3, world);
      checkpoint.reset();
    });
    EXPECT_EQ(restored_seed(folder()), 3);
  }
  EXPECT_GT(failures, 20);
}

INSTANTIATE_TEST_SUITE_P(Errors, FailingDisk,
                         ::testing::Values(std::pair(ENOSPC, Written::by_rank_0),
                                           std::pair(EIO, Written::by_rank_0),
                                           std::pair(ENOSPC, Written::in_parts),
                                           std::pair(EIO, Written::in_parts)),
                         [](auto const& tested) {
                           return std::string(strerrorname_np(tested.param.first)) +
                                  (tested.param.second == Written::in_parts ? "OfParts" : "");
                         });

}  // namespace
}  // namespace ddp::testing
