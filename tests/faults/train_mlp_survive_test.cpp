// train_mlp whose ranks are killed, and whose others go on in their processes (R26).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SurvivingTraining : public ::testing::Test {
 protected:
  /// Two seconds of training on four ranks.
  [[nodiscard]] std::vector<std::string> launch(int ranks, std::vector<std::string> const& options,
                                                std::vector<std::string> const& more) const {
    std::vector<std::string> words{"--synthetic", "--limit",  "16000", "--hidden",   "64",          "--batch",
                                   "64",          "--epochs", "12",    "--log-json", log().string()};
    words.insert(words.end(), more.begin(), more.end());
    return train_mlp(ranks, options, words);
  }
  [[nodiscard]] std::vector<std::string> surviving(std::vector<std::string> options = {}) const {
    options.emplace_back("--survive");
    return launch(4, options, {"--survive"});
  }
  [[nodiscard]] fs::path log() const { return folder_.path() / "log.json"; }
  [[nodiscard]] nlohmann::json parameters() const { return last_parameters(log()); }

  /// So many ranks go on after so many steps.
  struct Change {
    int ranks = 0;
    int step = 0;
  };
  [[nodiscard]] static std::vector<Change> changes_in(std::string const& out) {
    std::vector<Change> changes;
    std::regex const line("going on with ([0-9]+) ranks after step ([0-9]+)");
    for (std::sregex_iterator each(out.begin(), out.end(), line), end; each != end; ++each) {
      changes.push_back({std::stoi((*each)[1]), std::stoi((*each)[2])});
    }
    return changes;
  }

  /// The parameters of a training with that schedule of ranks in which nobody is killed: at each change all
  /// ranks end, and as many as are left begin from the checkpoint of that step.
  [[nodiscard]] nlohmann::json replay(std::vector<Change> const& changes,
                                      std::vector<std::string> const& more = {}) const {
    fs::path const checkpoints = folder_.path() / "checkpoints";
    fs::path const saved = folder_.path() / "saved";
    fs::remove(log());
    fs::remove_all(saved);
    int ranks = 4;
    for (Change const& change : changes) {
      bool found = false;
      for (int attempt = 0; attempt < 10 && !found; ++attempt) {
        begin_from(saved);
        std::vector<std::string> words{"--checkpoint", checkpoints.string(), "--checkpoint-every",
                                       text(change.step), "--resume"};
        words.insert(words.end(), more.begin(), more.end());
        LaunchedJob job(launch(ranks, {}, words));
        found = keep(text("-step-", change.step), saved);
        job.send(SIGTERM);
        job.exit_code();
      }
      EXPECT_TRUE(found) << "no checkpoint of step " << change.step;
      ranks = change.ranks;
    }
    begin_from(saved);
    std::vector<std::string> words{"--checkpoint", checkpoints.string(), "--resume"};
    words.insert(words.end(), more.begin(), more.end());
    LaunchedJob job(launch(ranks, {}, words));
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    EXPECT_THAT(job.out(), HasSubstr(text("-step-", changes.back().step, ", epoch")));
    return parameters();
  }
  /// What is saved is all that there is.
  void begin_from(fs::path const& saved) const {
    fs::path const checkpoints = folder_.path() / "checkpoints";
    fs::remove_all(checkpoints);
    if (fs::exists(saved)) fs::copy(saved, checkpoints, fs::copy_options::recursive);
  }
  /// Copies the checkpoint whose name ends so, when it is there, in place of what is saved. False if it was
  /// gone before it was copied, as later ones replace it, or never came.
  [[nodiscard]] bool keep(std::string const& wanted, fs::path const& saved) const {
    auto const end = std::chrono::steady_clock::now() + 20s;
    for (; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms)) {
      std::error_code problem;
      for (auto const& each : fs::directory_iterator(folder_.path() / "checkpoints", problem)) {
        std::string const name = each.path().filename().string();
        bool const complete = fs::exists(each.path() / "manifest.json", problem);
        if (!complete || !name.ends_with(wanted)) continue;
        fs::path const copied = folder_.path() / "copied";
        fs::remove_all(copied);
        fs::create_directories(copied);
        fs::copy(each.path(), copied / name, fs::copy_options::recursive, problem);
        if (problem || !fs::exists(each.path())) return false;
        fs::remove_all(saved);
        fs::rename(copied, saved);
        return true;
      }
    }
    return false;
  }

  TemporaryFolder folder_;
};

TEST_F(SurvivingTraining, R26WithoutAKilledRankTheOthersGiveTheBitsOfThatScheduleOfRanks) {
  for (std::size_t const victim : {2U, 0U}) {
    fs::remove(log());
    LaunchedJob job(surviving());
    ASSERT_TRUE(job.shows("epoch  1/12"));
    send_to_rank(job, "train_mlp", victim, SIGKILL);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    auto const changes = changes_in(job.out());
    ASSERT_EQ(changes.size(), 1U) << job.out();
    EXPECT_EQ(changes[0].ranks, 3);
    EXPECT_THAT(job.out(), ContainsRegex("final: test accuracy [0-9.]+, 3 ranks"));
    EXPECT_THAT(job.err(), AllOf(ContainsRegex(text("\\[ddp-launch\\] rank ", victim,
                                                    " \\(pid [0-9]+, cpu:0\\) was killed "
                                                    "by signal 9 \\(SIGKILL\\): 3 of 4 ranks are left")),
                                 ContainsRegex(text("\\[ddp-launch\\] went on without rank ", victim,
                                                    " \\(pid [0-9]+, "
                                                    "cpu:0\\), which was killed by signal 9"))));
    auto const found = parameters();
    EXPECT_EQ(found, replay(changes)) << "rank " << victim << " was killed after step " << changes[0].step;
  }
}

TEST_F(SurvivingTraining, R26TwoAtOnceAndThenAnotherLeaveOneThatEndsWell) {
  LaunchedJob job(surviving());
  ASSERT_TRUE(job.shows("epoch  1/12"));
  for (std::size_t const victim : {0U, 1U}) send_to_rank(job, "train_mlp", victim, SIGKILL);
  ASSERT_TRUE(job.shows("going on with 2 ranks"));
  std::this_thread::sleep_for(50ms);
  send_to_rank(job, "train_mlp", 0, SIGKILL);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  auto const changes = changes_in(job.out());
  ASSERT_GE(changes.size(), 2U) << job.out();
  EXPECT_EQ(changes.back().ranks, 1);
  auto const found = parameters();
  EXPECT_EQ(found, replay(changes));
}

// Rank 0 makes a checkpoint one, when all have written; then it is the next rank that writes on.
TEST_F(SurvivingTraining, R26ARankKilledWhileACheckpointIsWrittenLeavesGoodOnesAndTheFolderToTheOthers) {
  fs::path const checkpoints = folder_.path() / "written";
  for (auto const& [victim, replace] : {std::pair(0U, false), {2U, false}, {0U, true}}) {
    fs::remove_all(checkpoints);
    LaunchedJob job(launch(4, {"--survive", "--replace", replace ? "1" : "0"},
                           {"--survive", "--checkpoint", checkpoints.string(), "--checkpoint-every", "25"}));
    ASSERT_TRUE(job.shows("epoch  1/12"));
    auto const unfinished = [&] {
      std::error_code problem;
      for (auto const& each : fs::directory_iterator(checkpoints, problem)) {
        if (each.is_symlink() || !each.is_directory()) continue;
        if (!fs::exists(each.path() / "manifest.json", problem)) return true;
      }
      return false;
    };
    auto const end = std::chrono::steady_clock::now() + 10s;
    while (!unfinished() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(100us);
    send_to_rank(job, "train_mlp", victim, SIGKILL);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    ASSERT_EQ(changes_in(job.out()).size(), replace ? 2U : 1U) << job.out();
    EXPECT_FALSE(unfinished());
    std::string const ranks = replace ? "4 ranks" : "3 ranks";
    EXPECT_THAT(job.out(), ContainsRegex("final: test accuracy [0-9.]+, " + ranks));
    auto const found = parameters();
    // Of the last step, by those ranks; any number goes on from it, here with nothing left to do.
    LaunchedJob after(launch(2, {}, {"--checkpoint", checkpoints.string(), "--resume"}));
    EXPECT_EQ(after.exit_code(), 0) << after.err();
    EXPECT_THAT(after.out(), ContainsRegex("resumed from [0-9]+-step-3000, epoch 12, of " + ranks));
    EXPECT_EQ(parameters(), found);
    fs::remove(log());
  }
}

TEST_F(SurvivingTraining, R26ANewProcessTakesTheLostOnesPlaceWithTheBitsOfThatScheduleOfRanks) {
  for (std::size_t const victim : {2U, 0U}) {
    fs::remove(log());
    fs::path const events = folder_.path() / "events.jsonl";
    fs::remove(events);
    LaunchedJob job(surviving({"--replace", "1", "--events", events.string()}));
    ASSERT_TRUE(job.shows("epoch  1/12"));
    send_to_rank(job, "train_mlp", victim, SIGKILL);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    auto const changes = changes_in(job.out());
    ASSERT_EQ(changes.size(), 2U) << job.out();
    EXPECT_EQ(changes[0].ranks, 3);
    EXPECT_EQ(changes[1].ranks, 4);
    EXPECT_THAT(job.out(), ContainsRegex("final: test accuracy [0-9.]+, 4 ranks"));
    EXPECT_THAT(
        job.err(),
        AllOf(ContainsRegex(text("a new process for rank ", victim, " \\(pid [0-9]+, cpu:0\\), 1 of 1")),
              ContainsRegex(text("rank ", victim, " \\(pid [0-9]+, cpu:0\\) takes part: 4 of 4 ranks again")),
              ContainsRegex(
                  text("went on without rank ", victim, " \\(pid [0-9]+, cpu:0\\), which was killed"))));
    std::vector<std::vector<int>> rebuilt;
    std::vector<int> ups;     // processes of that rank
    std::vector<int> joined;  // those of them that took part
    for (std::string const& line : lines(read_file(events))) {
      auto const event = nlohmann::json::parse(line);
      if (event["event"] == "rebuild") {
        EXPECT_EQ(event["membership"], rebuilt.size() + 1);
        rebuilt.push_back(event["ranks"]);
      }
      if (event.value("rank", -1) != static_cast<int>(victim)) continue;
      if (event["event"] == "rank_up") ups.push_back(event["pid"]);
      if (event["event"] == "rank_joined") joined.push_back(event["pid"]);
    }
    std::vector<int> others;
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != static_cast<int>(victim)) others.push_back(rank);
    }
    EXPECT_THAT(rebuilt, ElementsAre(others, std::vector{0, 1, 2, 3}));
    EXPECT_EQ(ups.size(), 2U) << read_file(events);
    EXPECT_EQ(joined, ups);
    auto const found = parameters();
    EXPECT_EQ(found, replay(changes)) << "rank " << victim << " was killed after step " << changes[0].step;
  }
}

// Of a lost rank's part of the optimizer there is no copy but on the disk.
TEST_F(SurvivingTraining, R26WithAShardedOptimizerAllGoBackToTheLastCheckpointAndGiveTheBitsOfAReplayFromIt) {
  fs::path const written = folder_.path() / "written";
  for (auto const& [victim, replace] : {std::pair(2U, false), {0U, false}, {0U, true}}) {
    fs::remove(log());
    fs::remove_all(written);
    LaunchedJob job(
        launch(4, {"--survive", "--replace", replace ? "1" : "0"},
               {"--survive", "--shard", "--checkpoint", written.string(), "--checkpoint-every", "40"}));
    ASSERT_TRUE(job.shows("epoch  1/12"));
    send_to_rank(job, "train_mlp", victim, SIGKILL);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    auto const changes = changes_in(job.out());
    ASSERT_EQ(changes.size(), replace ? 2U : 1U) << job.out();
    for (Change const& change : changes) EXPECT_EQ(change.step % 40, 0) << job.out();
    EXPECT_EQ(changes.back().ranks, replace ? 4 : 3);
    auto const found = parameters();
    EXPECT_EQ(found, replay(changes, {"--shard"})) << "rank " << victim << " was killed\n" << job.out();
  }
}

TEST_F(SurvivingTraining, R26WhenNoNewProcessIsLeftTheOthersGoOnAlone) {
  LaunchedJob job(surviving({"--replace", "1"}));
  ASSERT_TRUE(job.shows("epoch  1/12"));
  send_to_rank(job, "train_mlp", 3, SIGKILL);
  ASSERT_TRUE(job.shows("going on with 4 ranks"));
  send_to_rank(job, "train_mlp", 1, SIGKILL);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("no new process is left: 1 of 1 were used"));
  EXPECT_THAT(job.out(), ContainsRegex("final: test accuracy [0-9.]+, 3 ranks"));
}

TEST_F(SurvivingTraining, R26ANewProcessOfAnotherModelSaysHowItDiffersAndTheOthersGoOn) {
  auto words = launch(4, {"--survive", "--replace", "5"}, {});
  auto const command = std::find(words.begin(), words.end(), std::string(TRAIN_MLP));
  words.insert(command,
               {"sh", "-c",
                "exec \"$0\" \"$@\" --survive $(test -n \"$DDP_REPLACEMENT\" && echo --hidden 32 || echo "
                "--hidden 64)"});
  auto const hidden = std::find(words.begin(), words.end(), std::string("--hidden"));
  words.erase(hidden, hidden + 2);
  LaunchedJob job(words);
  ASSERT_TRUE(job.shows("epoch  1/12"));
  send_to_rank(job, "train_mlp", 3, SIGKILL);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(
      job.err(),
      ContainsRegex("the new process of rank 3 has parameter fc1.weight f32\\[32,784\\] .*where rank [012] "
                    "has parameter fc1.weight f32\\[64,784\\] "));
  EXPECT_THAT(job.out(), ContainsRegex("final: test accuracy [0-9.]+, 3 ranks"));
}

TEST_F(SurvivingTraining, R26PaceStatisticsAndTracesTellOfALoss) {
  fs::path const statistics = folder_.path() / "statistics";
  fs::path const traces = folder_.path() / "traces";
  auto words = surviving();
  *std::ranges::find(words, "12") = "48";  // ranks report their pace once a second
  LaunchedJob job(words, {.environment = {text("DDP_STATISTICS=", statistics.string()),
                                          text("DDP_TRACE=", traces.string())}});
  ASSERT_TRUE(job.shows("ms a step; the slowest is rank"));
  send_to_rank(job, "train_mlp", 2, SIGKILL);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("\\[ddp-launch\\] step [0-9]+, 3 of 4 ranks, [0-9.]+ ms a step; the slowest "
                            "is rank [013] \\(cpu:0\\), for which others wait"));
  EXPECT_THAT(job.err(), Not(HasSubstr("is late")));
  auto const steps_of = [&](std::string const& name) {
    std::vector<nlohmann::json> steps;
    for (std::string const& line : lines(read_file(statistics / name)))
      steps.push_back(nlohmann::json::parse(line));
    return steps;
  };
  auto const changes = changes_in(job.out());
  ASSERT_EQ(changes.size(), 1U) << job.out();
  auto const before = steps_of("rank3.ddp-0.jsonl");
  auto const after = steps_of("rank3.ddp-@1-0.jsonl");
  ASSERT_FALSE(after.empty());
  EXPECT_EQ(before.front().at("ranks"), (nlohmann::json{0, 1, 2, 3}));
  EXPECT_EQ(before.back().at("membership"), 0);
  EXPECT_EQ(after.front().at("ranks"), (nlohmann::json{0, 1, 3}));
  EXPECT_EQ(after.front().at("step"), changes[0].step);
  EXPECT_EQ(after.back().at("membership"), 1);
  EXPECT_EQ(after.back().at("step"), 11999);
  EXPECT_FALSE(steps_of("rank2.ddp-0.jsonl").empty()) << "until a second before its end, in whole lines";
  auto const traced = nlohmann::json::parse(read_file(traces / "rank0.json")).at("traceEvents");
  EXPECT_TRUE(std::ranges::any_of(
      traced, [](auto const& event) { return event.at("name") == "rebuild(): ranks 0, 1, 3"; }));
  EXPECT_TRUE(nlohmann::json::parse(read_file(traces / "rank2.json")).contains("traceEvents"));
}

TEST_F(SurvivingTraining, R26AStoppedRankIsNamedByTheDeadlineAndEnded) {
  LaunchedJob job(surviving(), {.environment = {"DDP_TIMEOUT=1"}});
  ASSERT_TRUE(job.shows("epoch  1/12"));
  send_to_rank(job, "train_mlp", 1, SIGSTOP);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(ContainsRegex("rank 1 \\(pid [0-9]+, cpu:0\\) did not come to the others' "
                                  "World::rebuild\\(\\) in time, since it was stopped by a signal"),
                    ContainsRegex("went on without rank 1 \\(pid [0-9]+, cpu:0\\), which was stopped "
                                  "by a signal .*, and then was killed by ddp-launch")));
}

TEST_F(SurvivingTraining, R26WithFewerThanTheLeastTheJobFailsWithTheFirstCause) {
  LaunchedJob job(surviving({"--min-ranks", "3"}));
  ASSERT_TRUE(job.shows("epoch  1/12"));
  send_to_rank(job, "train_mlp", 1, SIGKILL);
  ASSERT_TRUE(job.shows("going on with 3 ranks"));
  send_to_rank(job, "train_mlp", 0, SIGKILL);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), AllOf(ContainsRegex("first cause: rank 0 .* was killed by signal 9"),
                               HasSubstr("2 of 4 ranks are left, and --min-ranks (DDP_MIN_RANKS) is 3"),
                               ContainsRegex("went on without rank 1 .*, which was killed by signal 9")));
}

TEST_F(SurvivingTraining, R26FewerThanTheLeastIsRestartedWithAllWhereThatIsAskedFor) {
  LaunchedJob job(surviving({"--min-ranks", "4", "--max-restarts", "1"}));
  ASSERT_TRUE(job.shows("epoch  1/12"));
  send_to_rank(job, "train_mlp", 1, SIGKILL);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
  EXPECT_THAT(job.out(), ContainsRegex("final: test accuracy [0-9.]+, 4 ranks"));
}

TEST_F(SurvivingTraining, R26WithoutTheLaunchersOptionALossEndsTheJobAndTheErrorSaysWhatHelps) {
  LaunchedJob job(launch(4, {}, {"--survive"}));
  ASSERT_TRUE(job.shows("epoch  1/12"));
  send_to_rank(job, "train_mlp", 3, SIGKILL);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), AllOf(ContainsRegex("first cause: rank 3 .* was killed by signal 9"),
                               HasSubstr("start it with ddp-launch --survive")));
}

TEST_F(SurvivingTraining, R26AProgramThatDoesNotGoOnFailsWithItsFirstCause) {
  LaunchedJob job(launch(4, {"--survive"}, {}));
  ASSERT_TRUE(job.shows("epoch  1/12"));
  send_to_rank(job, "train_mlp", 3, SIGKILL);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), AllOf(ContainsRegex("first cause: rank 3 .* was killed by signal 9"),
                               Not(HasSubstr("went on without"))));
}

}  // namespace
}  // namespace ddp::testing
