// Faults of ranks that train: the survivors get an error at once, and ddp-launch names the first cause.
#include <gmock/gmock.h>

#include <chrono>

#include "ddp/core/text.hpp"
#include "support/launched_job.hpp"
#include "support/shell.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> training(int ranks, std::string const& fault, int faulty_rank) {
  return {"--cpus", std::to_string(ranks),      "--no-log-files", "--", DDP_TRAINING_RANK,
          fault,    std::to_string(faulty_rank)};
}

TEST(TrainingFaults, F1AKilledRankIsNamedWithinASecondAndEveryOtherRankGetsAnError) {
  LaunchedJob job(training(3, "kill-in-all-reduce", 1));
  ASSERT_TRUE(job.shows("dies in 0.1 s"));
  auto const alive = std::chrono::steady_clock::now();
  ASSERT_TRUE(job.shows("rank 1 (pid"));
  auto const named = std::chrono::steady_clock::now();
  EXPECT_LT(named - alive, 1100ms);
  // Both survivors were in the middle of an all-reduce.
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_LT(std::chrono::steady_clock::now() - named, 4s) << "survivors waited for the grace to pass";
  for (std::string const survivor : {"0", "2"}) {
    EXPECT_THAT(job.err(), ContainsRegex("\\[" + survivor +
                                         "\\] peer_lost: [^\n]*rank 1 is gone \\(killed by signal 9"));
  }
  EXPECT_THAT(job.err(), HasSubstr("SIGKILL"));
  EXPECT_THAT(job.err(), HasSubstr("all_reduce"));
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1"));
}

TEST(TrainingFaults, F4ARankThatExits0WithoutLeavingIsTheFirstCause) {
  LaunchedJob job(training(2, "exit-early", 1));
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_THAT(job.err(), HasSubstr("left before the others"));
  EXPECT_THAT(job.err(), HasSubstr("peer_lost: rank 1 is gone"));
}

TEST(TrainingFaults, ARankThatLeavesInOrderWhileOthersNeedItIsNamedByThem) {
  LaunchedJob job(training(2, "return", 1));
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("peer_lost: rank 1 is gone (left the group)"));
}

TEST(TrainingFaults, F7DifferentShapesAreTheSameErrorOnEveryRank) {
  LaunchedJob job(training(3, "shapes", 2));
  EXPECT_EQ(job.exit_code(), 3);
  std::string const message =
      "mismatch: rank 2: parameter 0 \"weight\" is f32[3000] on cpu here, f32[2000] on cpu on rank 0";
  for (char const* const rank : {"[0] ", "[1] ", "[2] "}) EXPECT_THAT(job.err(), HasSubstr(rank + message));
}

TEST(TrainingFaults, F3AStoppedRankIsNamedByTheDeadlineAndKilledAtTheEnd) {
  auto words = training(3, "stop", 1);
  words.insert(words.begin(), {"--failure-grace", "1"});
  LaunchedJob job(words, {.environment = {"DDP_TIMEOUT=1.5"}});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(),
              ContainsRegex("timeout: rank [02] waited 1.5 s [^\n]*for rank 1; [^\n]*raise DDP_TIMEOUT"));
  EXPECT_THAT(job.err(),
              ContainsRegex("number [0-9]+ of ddp/0 on cpu: ranks 0, 2 called [^\n]*rank 1 called nothing"));
  EXPECT_THAT(job.err(), ContainsRegex("rank 1 [^\n]*killed by ddp-launch"));
}

TEST(TrainingFaults, F8RanksThatCallDifferentCollectivesAreToldWhichAndWhere) {
  LaunchedJob job(training(3, "order", 2));
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("first differ at number 1 of world: ranks 0, 1 called all_reduce (sum) of "
                                   "f32[4194304]; rank 2 called broadcast from rank 0 of f32[4194304]"));
  EXPECT_THAT(job.err(), HasSubstr("last collective: "));
}

TEST(TrainingFaults, F8EveryRanksLastCollectivesAreWrittenAlsoThoseOfAKilledOne) {
  TemporaryFolder const folder;
  std::string const logs = folder.path() / "logs";
  LaunchedJob job({"--cpus", "2", "--log-dir", logs, "--", DDP_TRAINING_RANK, "kill-in-all-reduce", "1"});
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), HasSubstr("the last collectives of all ranks: " + logs + "/rank*.flight.json"));
  for (int rank = 0; rank < 2; ++rank) {
    std::string const json = read_file(text(logs, "/rank", rank, ".flight.json"));
    EXPECT_THAT(json, HasSubstr(text("\"rank\": ", rank)));
    EXPECT_THAT(json, HasSubstr("\"communicator\": \"ddp/0 on cpu\""));
    EXPECT_THAT(json, HasSubstr("\"operation\": \"all_reduce\""));
  }
}

TEST(TrainingFaults, F10ASlowRankIsNamedAndNothingIsKilled) {
  LaunchedJob job(training(3, "slow", 1));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("warning: rank 1 is late: ranks 0, 2 have called number [0-9]+ of ddp/0 on cpu"));
  EXPECT_THAT(job.err(), Not(HasSubstr("killing")));
}

TEST(TrainingFaults, F9ADeadlineListsTheRankThatNeverCallsInit) {
  LaunchedJob job(training(3, "no-init", 1), {.environment = {"DDP_INIT_TIMEOUT=1"}});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("timeout: "));
  EXPECT_THAT(job.err(), ContainsRegex("rank 1[^0-9]"));
  EXPECT_THAT(job.err(), Not(HasSubstr("missing: rank 0")));
}

TEST(TrainingFaults, L8AnUncaughtExceptionIsTheReportedFirstCause) {
  LaunchedJob job(training(2, "uncaught", 0));
  EXPECT_EQ(job.exit_code(), 134);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0"));
  EXPECT_THAT(job.err(), HasSubstr("the loss is not a number"));
}

TEST(TrainingFaults, AnExceptionThatMainCatchesCountsAsAFailureToo) {
  LaunchedJob job(training(2, "exception", 0));
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0"));
  EXPECT_THAT(job.err(), HasSubstr("failed: the loss is not a number"));
}

TEST(TrainingFaults, L8ARankThatTakesLongToEndAfterItsExceptionIsTheFirstCauseAllTheSame) {
  LaunchedJob job(training(2, "exception-slow-exit", 0));
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0"));
  EXPECT_THAT(job.err(),
              HasSubstr("its error: invalid_state: rank 0 destroyed ddp/0 by an exception, after step 20"));
  EXPECT_THAT(job.err(), ContainsRegex("consequences:\n[^\n]*rank 1 [^\n]*exited with code 3: aborted"));
}

}  // namespace
}  // namespace ddp::testing
