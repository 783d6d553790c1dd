// What others have left or planted in the folder, what its file system lacks, and models of many tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "ddp/core/text.hpp"
#include "support/models/checkpoint_runs.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using CheckpointHostileFolder = CheckpointRuns;

// As `cp -rL` leaves it; on a file system without symbolic links there is none.
TEST_F(CheckpointHostileFolder, WhereLatestCannotBeALinkThatIsSaidOnceAndTheNewestIsUsed) {
  write(1, {1});
  fs::remove(folder() / "latest");
  fs::copy(folder() / "000001-step-10", folder() / "latest", fs::copy_options::recursive);
  ::testing::internal::CaptureStderr();
  write(1, {2, 3});
  EXPECT_THAT(lines(::testing::internal::GetCapturedStderr()),
              ElementsAre(AllOf(HasSubstr("latest to 000001-step-10: Is a directory"),
                                HasSubstr("later ones have higher numbers"))));
  on_ranks(1, [&](World const& world) {
    CheckpointModel model;
    Checkpoint checkpoint(world, folder(), model.tensors());
    EXPECT_EQ(checkpoint.newest(), "000003-step-30");
    ASSERT_TRUE(checkpoint.restore().has_value());
    EXPECT_TRUE(model.holds(3));
  });
}

TEST_F(CheckpointHostileFolder, AFileThatIsNoneIsRefusedAndTheOneBeforeIsUsed) {
  for (char const* const file : {"manifest.json", "model.safetensors", "rank-0.safetensors"}) {
    fs::remove_all(folder());
    write(1, {1, 2});
    fs::path const place = folder() / "000002-step-20" / file;
    for (bool const fifo : {true, false}) {
      fs::remove(place);
      if (fifo) {
        ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0);
      } else {
        fs::create_symlink(file, place);  // to itself
      }
      on_ranks(1, [&](World const& world) {
        CheckpointModel model;
        Checkpoint checkpoint(world, folder(), model.tensors());
        auto const restored = checkpoint.restore();
        ASSERT_TRUE(restored.has_value());
        EXPECT_EQ(restored->name, "000001-step-10") << file;
        ASSERT_THAT(restored->refused, SizeIs(1));
        EXPECT_THAT(restored->refused[0],
                    AllOf(HasSubstr(file), HasSubstr(fifo ? "is no regular file" : "ELOOP")));
      });
    }
  }
}

// In a folder that others may write to.
TEST_F(CheckpointHostileFolder, LinksInThePlaceOfFilesToWriteAreNotFollowed) {
  fs::path const victim = folder_.path() / "victim";
  fs::create_directory(victim);
  std::ofstream(victim / "file") << "mine";
  on_ranks(1, [&](World const& world) {
    CheckpointModel model;
    Checkpoint checkpoint(world, folder(), model.tensors());
    fs::create_directory(folder() / "000001-step-10");
    for (char const* const file : {"model.safetensors", "manifest.json"}) {
      fs::create_symlink(victim / "file",
                         folder() / "000001-step-10" /
                             ("." + std::string(file) + "." + std::to_string(::getpid()) + ".tmp"));
    }
    checkpoint.save({.step = 10});
    checkpoint.wait();
    fs::create_symlink(victim, folder() / "000002-step-20");
    checkpoint.save({.step = 20});
    EXPECT_THAT(message_of([&] { checkpoint.wait(); }), HasSubstr("000002-step-20: Not a directory"));
    ASSERT_TRUE(checkpoint.restore().has_value());
  });
  EXPECT_EQ(read_file(victim / "file"), "mine");
  EXPECT_THAT(names_in(victim), ElementsAre("file"));
  EXPECT_EQ(fs::symlink_status(folder() / "000001-step-10" / "manifest.json").type(), fs::file_type::regular);
}

// Of a model of this many tensors: one checkpoint, read again, in seconds.
double time_of(std::size_t tensors, fs::path const& folder) {
  std::vector<float> values(tensors, 1);
  CheckpointTensors all;
  for (std::size_t t = 0; t < tensors; ++t) {
    all.model.push_back(
        {text("a name that is as long as those of layers.", t), view_of(std::span(values).subspan(t, 1))});
  }
  double seconds = 0;
  on_ranks(1, [&](World const& world) {
    auto const begin = std::chrono::steady_clock::now();
    Checkpoint checkpoint(world, folder, all);
    checkpoint.save({.step = 1});
    checkpoint.wait();
    EXPECT_TRUE(checkpoint.restore().has_value());
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  return seconds;
}

// With 16 times the tensors: 16 where each is looked at once, 256 where each is compared with all.
TEST_F(CheckpointHostileFolder, TheTimeGrowsWithTheNumberOfTensorsNotItsSquare) {
  double const some = std::min(time_of(1000, folder() / "a"), time_of(1000, folder() / "b"));
  EXPECT_LT(time_of(16000, folder() / "many") / some, 64);
}

}  // namespace
}  // namespace ddp::testing
