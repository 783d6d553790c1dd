// train_mlp that is killed, stopped, or has no room on the disk, and goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "ddp/core/text.hpp"
#include "faults/train_mlp_runs.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// About a second of training on two ranks.
std::vector<std::string> const kTraining{"--synthetic", "--limit", "16000",    "--hidden", "64",
                                         "--batch",     "64",      "--epochs", "4"};
// Three seconds, of so many steps: for tests that look for a checkpoint and then kill. A busy machine may
// keep them from looking for a second.
constexpr int kLonger = 3;
constexpr int kStepsOfLonger = kLonger * 4 * 16000 / 64;

class TrainMlpRecovery : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path folder() const { return folder_.path() / "checkpoints"; }
  [[nodiscard]] fs::path log() const { return folder_.path() / "log.json"; }

  [[nodiscard]] std::vector<std::string> launch(int ranks, std::vector<std::string> const& more,
                                                std::vector<std::string> const& options = {}) const {
    std::vector<std::string> words = kTraining;
    words.back() = std::to_string(4 * times_);  // epochs
    words.insert(words.end(), more.begin(), more.end());
    return train_mlp(ranks, options, words);
  }
  [[nodiscard]] std::vector<std::string> resuming(int ranks,
                                                  std::vector<std::string> const& options = {}) const {
    return launch(ranks,
                  {"--checkpoint", folder().string(), "--checkpoint-every", "20", "--resume", "--log-json",
                   log().string()},
                  options);
  }
  [[nodiscard]] nlohmann::json parameters() const { return last_parameters(log()); }
  /// Those of a run that nothing happens to.
  [[nodiscard]] nlohmann::json undisturbed(int ranks) const {
    LaunchedJob job(launch(ranks, {"--log-json", log().string()}));
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    return parameters();
  }
  [[nodiscard]] bool has_checkpoints() const {
    std::error_code none;
    return fs::exists(folder() / "latest", none);
  }
  /// Until the folder's newest checkpoint is another than `before`; "" after 20 s or when the job has ended.
  [[nodiscard]] std::string newer_than(std::string const& before) const {
    auto const end = std::chrono::steady_clock::now() + 20s;
    while (std::chrono::steady_clock::now() < end) {
      std::error_code none;
      std::string const now = fs::read_symlink(folder() / "latest", none).string();
      if (now != before && !now.empty()) return now;
      std::this_thread::sleep_for(1ms);
    }
    return {};
  }
  void expect_tidy() const {
    for (auto const& entry : fs::recursive_directory_iterator(folder())) {
      EXPECT_THAT(entry.path().string(), Not(::testing::EndsWith(".tmp")));
    }
    EXPECT_LE(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 4);
  }

  TemporaryFolder folder_;
  int times_ = 1;  // as many epochs
};

// "00000003-step-60": 60.
int step_of(std::string const& checkpoint) {
  std::size_t const number = checkpoint.rfind('-');
  return number == std::string::npos ? 0 : std::stoi(checkpoint.substr(number + 1));
}

TEST_F(TrainMlpRecovery, R25ShardedAndPlainTrainingsGoOnFromEachOthersCheckpoints) {
  times_ = kLonger;
  auto const expected = undisturbed(2);
  for (bool const shard_first : {true, false}) {
    fs::remove_all(folder());
    fs::remove(log());
    auto const words = [&](bool shard) {
      auto all = resuming(2);
      if (shard) all.emplace_back("--shard");
      return all;
    };
    LaunchedJob first(words(shard_first));
    ASSERT_NE(newer_than(""), "");
    first.send(SIGTERM);
    EXPECT_EQ(first.exit_code(), 143) << first.err();
    LaunchedJob then(words(!shard_first));
    EXPECT_EQ(then.exit_code(), 0) << then.err();
    EXPECT_EQ(parameters(), expected) << (shard_first ? "sharded, then plain" : "plain, then sharded");
  }
}

TEST_F(TrainMlpRecovery, KilledAnywhereItEndsWithTheSameBitsAsARunThatWasNot) {
  times_ = kLonger;
  auto const expected = undisturbed(2);
  fs::remove(log());
  std::string newest;
  int kills = 0;
  // Of the launcher, of either rank; each time later by a little, so that it meets steps and writes anywhere.
  // Never near the end, where a busy machine might let a job finish first.
  for (; kills < 9 && step_of(newest) < kStepsOfLonger / 3; ++kills) {
    LaunchedJob job(resuming(2));
    newest = newer_than(newest);
    ASSERT_FALSE(newest.empty()) << job.err();
    ASSERT_GT(step_of(newest), 0) << newest;
    std::this_thread::sleep_for(kills * 2300us);
    if (kills % 3 == 2) {
      job.send(SIGKILL);
      EXPECT_TRUE(job.all_gone_within(5s));
    } else {
      send_to_rank(job, "train_mlp", static_cast<std::size_t>(kills % 3), SIGKILL);
    }
    EXPECT_EQ(job.exit_code(), 137) << "the training was too short for this test";
  }
  EXPECT_GE(kills, 3) << "of the launcher and of each rank";
  LaunchedJob job(resuming(2));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), ContainsRegex("resumed from 0000[0-9]+-step-[0-9]+, epoch [0-9]+, of 2 ranks"));
  EXPECT_EQ(parameters(), expected);
  expect_tidy();
}

TEST_F(TrainMlpRecovery, L10RestartedByTheLauncherItEndsWithTheSameBits) {
  times_ = kLonger;
  auto const expected = undisturbed(2);
  fs::remove(log());
  LaunchedJob job(resuming(2, {"--max-restarts", "5"}));
  std::string newest;
  for (std::size_t kills = 0; kills < 3; ++kills) {
    newest = newer_than(newest);
    ASSERT_FALSE(newest.empty()) << job.err();
    send_to_rank(job, "train_mlp", kills % 2, SIGKILL);
    ASSERT_TRUE(job.shows(text("restart ", kills + 1, " of 5")));
    newest = fs::read_symlink(folder() / "latest").string();
  }
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(job.err(), HasSubstr("last progress since the start: step "))
      << "that it made steps is why it went on";
  EXPECT_THAT(job.out(), HasSubstr("resumed from "));
  EXPECT_EQ(parameters(), expected);
  expect_tidy();
}

TEST_F(TrainMlpRecovery, F6SigtermToTheLauncherStopsAllRanksAtOneStepWithACheckpoint) {
  auto const expected = undisturbed(3);
  fs::remove(log());
  {
    LaunchedJob job(resuming(3));
    ASSERT_FALSE(newer_than("").empty());
    job.send(SIGTERM);
    EXPECT_EQ(job.exit_code(), 143);
    EXPECT_THAT(job.err(), ContainsRegex("\\[0\\] train_mlp: stopped by SIGTERM after step [0-9]+, saved as "
                                         "[0-9]+-step-[0-9]+; --resume goes on from there"));
    EXPECT_THAT(job.err(), HasSubstr("the job was stopped by SIGTERM"));
    EXPECT_THAT(job.err(), Not(HasSubstr("peer_lost")));
  }
  // What was said last is what is there.
  std::string const name = fs::read_symlink(folder() / "latest").string();
  LaunchedJob job(resuming(3));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("resumed from " + name));
  EXPECT_EQ(parameters(), expected);
  expect_tidy();
}

TEST_F(TrainMlpRecovery, F6ASignalToOneRankIsEnoughAndAloneItWorksToo) {
  {
    LaunchedJob job(resuming(2));
    ASSERT_FALSE(newer_than("").empty());
    send_to_rank(job, "train_mlp", 1, SIGINT);
    EXPECT_EQ(job.exit_code(), 130);
    EXPECT_THAT(job.err(), HasSubstr("stopped by SIGINT after step"));
  }
  // Goes on alone, and is stopped again.
  auto words = resuming(1);
  words.erase(words.begin(), std::find(words.begin(), words.end(), TRAIN_MLP));
  auto const outcome =
      run_shell(folder_.path(), "CUDA_VISIBLE_DEVICES= " + join(words, " ") +
                                    " & pid=$!\nwhile ! grep -q resumed command.out; do sleep 0.01; done\n"
                                    "kill -TERM $pid\nwait $pid");
  EXPECT_EQ(outcome.exit_code, 143) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("of 2 ranks"));
  EXPECT_THAT(outcome.err, HasSubstr("stopped by SIGTERM after step"));
}

TEST_F(TrainMlpRecovery, AnotherNumberOfRanksGoesOn) {
  {
    LaunchedJob job(resuming(2));
    ASSERT_FALSE(newer_than("").empty());
    job.send(SIGTERM);
    EXPECT_EQ(job.exit_code(), 143);
  }
  LaunchedJob job(resuming(3));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  auto const found = parameters();
  auto const expected = undisturbed(3);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double const norm = expected[i].at("norm").get<double>();
    EXPECT_NEAR(found[i].at("norm").get<double>(), norm, 1e-3 * norm);
  }
}

TEST_F(TrainMlpRecovery, F17ADamagedCheckpointIsRefusedAndTheOneBeforeGivesTheSameBits) {
  auto const expected = undisturbed(2);
  {
    LaunchedJob job(resuming(2));
    ASSERT_FALSE(newer_than(newer_than("")).empty());
    job.send(SIGTERM);
    EXPECT_EQ(job.exit_code(), 143);
  }
  fs::path const damaged = folder() / fs::read_symlink(folder() / "latest");
  fs::resize_file(damaged / "optimizer.safetensors", 1000);
  LaunchedJob job(resuming(2));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr(damaged.string() + " is refused: optimizer.safetensors has 1000 B, "),
                    HasSubstr("the one before it is looked at")));
  EXPECT_EQ(parameters(), expected);
}

TEST_F(TrainMlpRecovery, AnotherTrainingIsRefusedWithWhatDiffers) {
  {
    LaunchedJob job(resuming(2));
    ASSERT_FALSE(newer_than("").empty());
    job.send(SIGTERM);
    EXPECT_EQ(job.exit_code(), 143);
  }
  auto const with = [&](std::string const& option, std::string const& value) {
    auto words = resuming(2);
    *(std::find(words.begin(), words.end(), option) + 1) = value;
    return words;
  };
  {
    LaunchedJob job(with("--batch", "128"));
    EXPECT_EQ(job.exit_code(), 65);
    EXPECT_THAT(job.err(), HasSubstr("was made with --batch 64, this run has 128"));
  }
  {
    LaunchedJob job(with("--hidden", "32"));
    EXPECT_EQ(job.exit_code(), 65);
    EXPECT_THAT(job.err(), HasSubstr("model tensor \"fc1.bias\" is expected to be f32[32], found f32[64]"));
  }
  LaunchedJob job(launch(2, {"--checkpoint", folder().string()}));
  EXPECT_EQ(job.exit_code(), 73);
  EXPECT_THAT(job.err(), HasSubstr("of another run: --resume goes on from it"));
}

TEST_F(TrainMlpRecovery, F16OnAFullDiskTrainingGoesOnAndTheOldCheckpointLoads) {
  // A file system of 3 MiB of our own, with two checkpoints of 0.6 MiB or three. The ballast takes what else
  // there is, and what becomes free when an old one goes.
  auto const mounted = [&](std::string const& script) {
    std::ofstream(folder_.path() / "inside.sh")
        << "mount -t tmpfs -o size=3m tmpfs '" << folder().string() << "' || exit 99\n"
        << script << '\n';
    return run_shell(folder_.path(), "exec unshare -rm sh inside.sh");
  };
  fs::create_directories(folder());
  if (mounted("true").exit_code != 0) GTEST_SKIP() << "unshare -rm, or mount in it, is not allowed here";
  std::string const launcher = text(DDP_LAUNCH, " --cpus 2 --no-log-files --no-prefix -- ", TRAIN_MLP, " ",
                                    join(kTraining, " "), " --resume --checkpoint ", folder().string());
  std::string const ballast = folder() / "ballast";
  auto const outcome = mounted(
      text("set -e\n", launcher, " --checkpoint-every 10 & job=$!\n", "while [ ! -e ", folder().string(),
           "/latest ]; do sleep 0.001; done\n", "while [ ! -e ended ]; do head -c 3000000 /dev/zero >>",
           ballast, " 2>/dev/null || sleep 0.001; done & filling=$!\n",
           "code=0; wait $job || code=$?; echo first $code; touch ended; wait $filling\n", "ls ",
           folder().string(), "\n", "rm ", ballast, "\n", launcher));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              ContainsRegex("train_mlp: checkpoint [^\n]* was not written: rank 0: "
                            "[^\n]*No space left on device \\(ENOSPC\\); those before it are still there"));
  EXPECT_THAT(outcome.out, HasSubstr("first 74\n")) << "the last checkpoint of all was not written";
  EXPECT_THAT(outcome.out, HasSubstr("epoch 4/4")) << "training itself went on";
  EXPECT_THAT(outcome.out, ContainsRegex("resumed from 0000[0-9]+-step-[0-9]+, "));
  EXPECT_THAT(outcome.out, HasSubstr("final: test accuracy"));
}

}  // namespace
}  // namespace ddp::testing
