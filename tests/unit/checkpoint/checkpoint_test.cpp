// What a checkpoint holds comes back, on any number of ranks, and what does not fit is refused.
#include "ddp/checkpoint/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "checkpoint/manifest.hpp"
#include "ddp/device/random.hpp"
#include "support/models/checkpoint_runs.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void flip_a_bit(fs::path const& file, std::size_t at) {
  std::string content = read_file(file);
  ASSERT_LT(at, content.size());
  content[at] = static_cast<char>(static_cast<unsigned char>(content[at]) ^ 4U);
  std::ofstream(file, std::ios::binary) << content;
}

class CheckpointTest : public CheckpointRuns {
 protected:
  /// What restore() throws on each rank, the same on all.
  template <class Change>
  [[nodiscard]] std::string refusal(int ranks, Change change) const {
    std::vector<std::string> messages(static_cast<std::size_t>(ranks));
    on_ranks(ranks, [&](World const& world) {
      CheckpointModel model(99);
      CheckpointTensors tensors = model.tensors();
      change(tensors);
      Checkpoint checkpoint(world, folder(), tensors);
      auto const error = error_of([&] { static_cast<void>(checkpoint.restore()); });
      EXPECT_TRUE(model.holds(99)) << "nothing may be changed by a restore that fails";
      messages[world.rank().index()] = error.what();
    });
    for (auto const& message : messages) EXPECT_EQ(message, messages[0]);
    return messages[0];
  }
};

TEST_F(CheckpointTest, WhatWasSavedComesBackOnEveryRank) {
  write(3, {1, 2});
  on_ranks(3, [&](World const& world) {
    CheckpointModel model(50, 7);
    Checkpoint checkpoint(world, folder(), model.tensors());
    EXPECT_EQ(checkpoint.newest(), "000002-step-20");
    auto const restored = checkpoint.restore();
    ASSERT_TRUE(restored.has_value());
    EXPECT_EQ(restored->name, "000002-step-20");
    EXPECT_EQ(restored->position.step, 20U);
    EXPECT_EQ(restored->position.epoch, 3U);
    EXPECT_EQ(restored->position.samples, 128U);
    EXPECT_EQ(restored->position.metadata.at("note"), "größer");
    EXPECT_EQ(restored->ranks, 3);
    EXPECT_THAT(restored->refused, IsEmpty());
    EXPECT_TRUE(model.holds(2));
    EXPECT_TRUE(restored->rank_tensors);
    EXPECT_EQ(model.random, CheckpointModel(2, world.rank().value()).random);
  });
}

TEST_F(CheckpointTest, ARelativeFolderIsOneWhereverTheProgramGoes) {
  fs::path const others = folder_.path() / "other" / "checkpoints";
  World const world = World::init();
  CheckpointModel model;
  Checkpoint other(world, others, model.tensors());
  other.save({.step = 1000});
  other.wait();
  std::optional<Checkpoint> checkpoint;
  {
    InFolder const start(folder_.path() / "run");
    checkpoint.emplace(world, "checkpoints", model.tensors(), CheckpointOptions{.keep = 1});
    checkpoint->save({.step = 1});
  }
  InFolder const later(folder_.path() / "other");
  checkpoint->save({.step = 2});
  checkpoint->wait();
  EXPECT_EQ(checkpoint->restore()->name, "000002-step-2");
  checkpoint.reset();
  EXPECT_THAT(names_in(folder()), ElementsAre(".lock", "000002-step-2", "latest"));
  EXPECT_THAT(names_in(others), ElementsAre(".lock", "000001-step-1000", "latest"));
}

TEST_F(CheckpointTest, AsLongAsItTakesIsATimeout) {
  write(2, {1}, {.timeout = std::chrono::milliseconds::max()});
  EXPECT_TRUE(fs::exists(folder() / "000001-step-10"));
}

// D13
TEST_F(CheckpointTest, AGeneratorOfRandomNumbersGoesOnWhereItWas) {
  auto const draw = [](RandomGenerator& generator) {
    std::vector<float> numbers(9);
    fill_normal(view_of(std::span(numbers)), generator, *HostStream::inline_stream());
    return numbers;
  };
  on_ranks(2, [&](World const& world) {
    CheckpointModel model;
    CheckpointTensors tensors = model.tensors();
    RandomGenerator generator(8, random_stream(world.rank(), world.device()));
    tensors.rank.push_back({"generator", generator.state()});
    static_cast<void>(draw(generator));
    std::vector<float> expected;
    {
      Checkpoint checkpoint(world, folder(), tensors);
      checkpoint.save({1, 0, 0, {}});
      checkpoint.wait();
      expected = draw(generator);
    }
    RandomGenerator other(0);
    tensors.rank.back() = {"generator", other.state()};
    Checkpoint checkpoint(world, folder(), tensors);
    ASSERT_TRUE(checkpoint.restore());
    EXPECT_EQ(draw(other), expected);
    EXPECT_EQ(other.stream(), random_stream(world.rank(), world.device())) << "each rank its own";
  });
}

TEST_F(CheckpointTest, AnEmptyFolderIsNoCheckpoint) {
  on_ranks(2, [&](World const& world) {
    CheckpointModel model(1);
    Checkpoint checkpoint(world, folder(), model.tensors());
    EXPECT_EQ(checkpoint.newest(), "");
    EXPECT_FALSE(checkpoint.restore().has_value());
    EXPECT_TRUE(model.holds(1));
  });
  EXPECT_THAT(names_in(folder()), ElementsAre(".lock"));
}

TEST_F(CheckpointTest, AnotherNumberOfRanksGoesOnFromIt) {
  for (auto const& [before, now] : {std::pair(1, 3), std::pair(3, 2)}) {
    write(before, {before});
    on_ranks(now, [&](World const& world) {
      CheckpointModel model(50, 7);
      Checkpoint checkpoint(world, folder(), model.tensors());
      auto const restored = checkpoint.restore();
      ASSERT_TRUE(restored.has_value());
      EXPECT_EQ(restored->ranks, before);
      EXPECT_TRUE(model.holds(before));
      // A rank that was not there keeps its own tensors as they are.
      EXPECT_EQ(restored->rank_tensors, world.rank() < Rank{before});
      auto const own = restored->rank_tensors ? CheckpointModel(before, world.rank().value()).random
                                              : CheckpointModel(50, 7).random;
      EXPECT_EQ(model.random, own);
    });
  }
}

TEST_F(CheckpointTest, TheStateOfTheMomentOfSaveIsWrittenWhateverComesAfter) {
  on_ranks(2, [&](World const& world) {
    CheckpointModel model(1, world.rank().value());
    Checkpoint checkpoint(world, folder(), model.tensors());
    checkpoint.save({.step = 1});
    model.fill(2, 0);  // training goes on
    checkpoint.wait();
    ASSERT_TRUE(checkpoint.restore().has_value());
    EXPECT_TRUE(model.holds(1));
  });
}

TEST_F(CheckpointTest, TheLastOnesAreKeptAndLatestLeadsToTheNewest) {
  write(2, {1, 2, 3, 4});
  EXPECT_THAT(names_in(folder()), ElementsAre(".lock", "000003-step-30", "000004-step-40", "latest"));
  EXPECT_EQ(fs::read_symlink(folder() / "latest"), "000004-step-40");
  EXPECT_THAT(names_in(folder() / "latest"),
              ElementsAre("manifest.json", "model.safetensors", "optimizer.safetensors", "rank-0.safetensors",
                          "rank-1.safetensors"));
  write(2, {1}, {.keep = 1});
  EXPECT_THAT(names_in(folder()), ElementsAre(".lock", "000005-step-10", "latest"));
}

TEST_F(CheckpointTest, FilesThatAreNotItsOwnAreLeftAlone) {
  fs::create_directories(folder() / "000007-notes");
  std::ofstream(folder() / "README.txt") << "mine";
  write(1, {1, 2, 3});
  EXPECT_THAT(names_in(folder()), ElementsAre(".lock", "000002-step-20", "000003-step-30", "000007-notes",
                                              "README.txt", "latest"));
}

TEST_F(CheckpointTest, F17DamageOfAnyFileIsRefusedAndTheOneBeforeIsUsed) {
  for (char const* const file :
       {"model.safetensors", "optimizer.safetensors", "rank-1.safetensors", "manifest.json"}) {
    for (bool const cut : {false, true}) {
      fs::remove_all(folder());
      write(2, {1, 2});
      fs::path const damaged = folder() / "000002-step-20" / file;
      if (cut) {
        fs::resize_file(damaged, fs::file_size(damaged) / 2);
      } else {
        flip_a_bit(damaged, fs::file_size(damaged) / 2);
      }
      on_ranks(2, [&](World const& world) {
        CheckpointModel model;
        Checkpoint checkpoint(world, folder(), model.tensors());
        auto const restored = checkpoint.restore();
        ASSERT_TRUE(restored.has_value());
        EXPECT_EQ(restored->name, "000001-step-10") << file;
        EXPECT_TRUE(model.holds(1));
        ASSERT_THAT(restored->refused, SizeIs(1));
        EXPECT_THAT(restored->refused[0], AllOf(HasSubstr("000002-step-20"), HasSubstr(file)));
        EXPECT_EQ(fs::read_symlink(folder() / "latest"), "000001-step-10") << "not to the damaged one";
      });
    }
  }
}

TEST_F(CheckpointTest, F17EveryBitOfAManifestCounts) {
  write(1, {1, 2});
  fs::path const manifest = folder() / "000002-step-20" / "manifest.json";
  std::string const whole = read_file(manifest);
  for (std::size_t at = 0; at < whole.size(); at += 3) {
    flip_a_bit(manifest, at);
    on_ranks(1, [&](World const& world) {
      CheckpointModel model;
      Checkpoint checkpoint(world, folder(), model.tensors());
      auto const restored = checkpoint.restore();
      ASSERT_TRUE(restored.has_value());
      // White space may change; nothing else may and be believed.
      if (restored->name == "000002-step-20") {
        EXPECT_EQ(restored->position.step, 20U) << at;
        EXPECT_TRUE(model.holds(2));
      } else {
        EXPECT_EQ(restored->name, "000001-step-10");
      }
    });
    std::ofstream(manifest, std::ios::binary) << whole;
  }
}

TEST_F(CheckpointTest, ADamagedOneIsNotCountedAmongThoseThatStay) {
  write(1, {1, 2});
  flip_a_bit(folder() / "000002-step-20" / "model.safetensors", 300);
  on_ranks(1, [&](World const& world) {
    CheckpointModel model;
    Checkpoint checkpoint(world, folder(), model.tensors());
    ASSERT_TRUE(checkpoint.restore().has_value());
    checkpoint.save({.step = 15});
    checkpoint.wait();
  });
  EXPECT_THAT(names_in(folder()), ElementsAre(".lock", "000001-step-10", "000003-step-15", "latest"));
}

TEST_F(CheckpointTest, IfAllAreDamagedNothingBeginsAnewUnasked) {
  write(2, {1, 2});
  for (char const* const name : {"000001-step-10", "000002-step-20"}) {
    fs::remove(folder() / name / "model.safetensors");
  }
  EXPECT_THAT(refusal(2, [](auto&) {}),
              AllOf(HasSubstr("no checkpoint in"), HasSubstr("000001-step-10"), HasSubstr("000002-step-20"),
                    HasSubstr("model.safetensors"), HasSubstr("use another folder")));
}

TEST_F(CheckpointTest, OtherTensorsAreRefusedNamingTensorExpectedAndFound) {
  write(2, {1});
  EXPECT_THAT(refusal(2,
                      [](auto& tensors) {
                        tensors.model[1].value.shape = Shape{5, 4};
                      }),
              HasSubstr("model tensor \"weight\" is expected to be f32[5,4], found f32[4,5]"));
  EXPECT_THAT(refusal(2, [](auto& tensors) { tensors.model[1].value.dtype = DType::i32; }),
              HasSubstr("model tensor \"weight\" is expected to be i32[4,5], found f32[4,5]"));
  EXPECT_THAT(refusal(2, [](auto& tensors) { tensors.optimizer[0].name = "weight.square"; }),
              HasSubstr("optimizer tensor \"weight.square\" is expected, f32[20], and is not in it"));
  EXPECT_THAT(refusal(2, [](auto& tensors) { tensors.model.pop_back(); }),
              HasSubstr("model tensor \"nothing\" is in it, f32[0,3], and not expected"));
  EXPECT_THAT(refusal(2, [](auto& tensors) { tensors.optimizer.clear(); }),
              HasSubstr("optimizer tensor \"weight.mean\" is in it"));
  EXPECT_THAT(refusal(1, [](auto& tensors) { tensors.rank[0].value.shape = Shape{2}; }),
              HasSubstr("rank tensor \"random\" is expected to be i64[2], found i64[4]"));
}

TEST_F(CheckpointTest, RanksWithDifferentModelsAreToldBeforeAnythingIsWritten) {
  on_ranks(2, [&](World const& world) {
    CheckpointModel model;
    auto tensors = model.tensors();
    if (world.rank() == 1) tensors.optimizer[0].value.shape = Shape{4, 5};
    auto const error = error_of([&] { Checkpoint const checkpoint(world, folder(), tensors); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("optimizer/weight.mean")));
  });
  EXPECT_FALSE(fs::exists(folder()));
}

TEST_F(CheckpointTest, ATensorThatIsNotRowMajorIsRefused) {
  on_ranks(2, [&](World const& world) {
    CheckpointModel model;
    auto tensors = model.tensors();
    tensors.model[1].strides = {1, 4};
    auto const error = error_of([&] { Checkpoint const checkpoint(world, folder(), tensors); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("tensor \"weight\" has strides [1,4], and safetensors files"));
  });
  EXPECT_FALSE(fs::exists(folder()));
}

TEST_F(CheckpointTest, APlaceThatCannotBeWrittenIsAnErrorOnEveryRank) {
  std::ofstream(folder_.path() / "run") << "a file";
  on_ranks(2, [&](World const& world) {
    CheckpointModel model;
    auto const error = error_of([&] { Checkpoint const checkpoint(world, folder(), model.tensors()); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr((folder_.path() / "run").string()),
                                    HasSubstr("Not a directory")));
  });
}

TEST_F(CheckpointTest, AFolderBelongsToOneJobAtATime) {
  on_ranks(1, [&](World const& world) {
    CheckpointModel model;
    Checkpoint const first(world, folder(), model.tensors());
    auto const error = error_of([&] { Checkpoint const second(world, folder(), model.tensors()); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_state);
    EXPECT_THAT(error.what(), HasSubstr("another job writes checkpoints to"));
  });
}

TEST_F(CheckpointTest, EWhatDeadWritersLeftIsRemovedAtTheNextStart) {
  write(1, {1, 2});
  fs::path const half = folder() / "000003-step-30";
  fs::create_directories(half);
  std::ofstream(half / ".model.safetensors.4711.tmp") << "half";
  std::ofstream(half / "rank-1.safetensors") << "whole, but without a manifest";
  std::ofstream(folder() / "000002-step-20" / ".manifest.json.4711.tmp") << "half";
  std::ofstream(folder() / ".latest.4711.tmp") << "half";
  on_ranks(2, [&](World const& world) {
    CheckpointModel model;
    Checkpoint checkpoint(world, folder(), model.tensors());
    auto const restored = checkpoint.restore();
    ASSERT_TRUE(restored.has_value());
    EXPECT_EQ(restored->name, "000002-step-20");
  });
  EXPECT_THAT(names_in(folder()), ElementsAre(".lock", "000001-step-10", "000002-step-20", "latest"));
  EXPECT_FALSE(fs::exists(folder() / "000002-step-20" / ".manifest.json.4711.tmp"));
}

TEST_F(CheckpointTest, SeveralTrainingsOfOneProcessHaveAFolderEach) {
  on_ranks(2, [&](World const& world) {
    CheckpointModel one(1);
    CheckpointModel two(2);
    Checkpoint first(world, folder() / "one", one.tensors());
    Checkpoint second(world, folder() / "two", two.tensors());
    first.save({.step = 1});
    second.save({.step = 1});
    first.wait();
    second.wait();
    one.fill(5, 0);
    two.fill(5, 0);
    ASSERT_TRUE(first.restore().has_value());
    ASSERT_TRUE(second.restore().has_value());
    EXPECT_TRUE(one.holds(1));
    EXPECT_TRUE(two.holds(2));
  });
}

TEST(CheckpointName, IsReadAsItIsWrittenAndNothingElse) {
  for (CheckpointName const name : {CheckpointName{7, 120}, {1234567, 0}, {1, 99999999999ULL}}) {
    EXPECT_EQ(parse_checkpoint_name(to_string(name)), name);
  }
  EXPECT_EQ(to_string(CheckpointName{7, 120}), "000007-step-120");
  for (char const* const other :
       {"", "latest", "7-step-120", "000007-step-", "000007-step-1x", "000007-step-01", "000007-step--1",
        "000007-step-120.tmp", "+00007-step-1"}) {
    EXPECT_FALSE(parse_checkpoint_name(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace ddp::testing
