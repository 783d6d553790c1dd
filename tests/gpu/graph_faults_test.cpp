// Faults of ranks that replay their steps (R24): named as those of eager steps are, and within their
// deadlines. On two GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/launcher/launched_job.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

// Rank 1 is the faulty one.
std::vector<std::string> replaying(std::string const& fault) {
  return {"--gpus", "0,1", "--no-log-files", "--", DDP_GRAPH_RANK, fault, "1"};
}
LaunchedJob::Settings within_3_seconds() { return {.environment = {"DDP_TIMEOUT=3"}}; }

TEST(GraphFaultsOnGpus, F1R24AKilledRankIsNamedWithinASecondAndTheOtherGetsAnError) {
  for (std::string const fault : {"kill", "kill-while-replaying"}) {
    LaunchedJob job(replaying(fault));
    ASSERT_TRUE(job.shows("fails", 60s));
    auto const alive = Clock::now();
    ASSERT_TRUE(job.shows("rank 1 (pid"));
    auto const named = Clock::now();
    EXPECT_LT(named - alive, 1100ms);
    EXPECT_EQ(job.exit_code(), 137);
    EXPECT_LT(Clock::now() - named, 5s) << "the survivor waited for the grace to pass";
    EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 (pid "));
    EXPECT_THAT(job.err(), ContainsRegex("\\[0\\] peer_lost: [^\n]*rank 1 is gone"));
    EXPECT_THAT(job.err(), HasSubstr("replay"));
    EXPECT_THAT(job.err(), Not(HasSubstr("was killed by ddp-launch")));
  }
}

TEST(GraphFaultsOnGpus, F3R24AStoppedRankIsTheFirstCause) {
  LaunchedJob job(replaying("stop"), within_3_seconds());
  EXPECT_EQ(job.exit_code(), 3) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("\\[0\\] timeout: rank 0 waited 3 s [^\n]*for rank 1"));
  EXPECT_THAT(job.err(), ContainsRegex("rank 1 \\(process [0-9]+\\) is stopped by a signal"));
  EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 1 [^\n]*was stopped by a signal"));
}

TEST(GraphFaultsOnGpus, F8R24ARankThatSkipsAReplayIsNamedAtItsDeadline) {
  LaunchedJob job(replaying("skip"), within_3_seconds());
  EXPECT_EQ(job.exit_code(), 3) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("rank 1 is late: rank 0 has called number [0-9]+ [^\n]*replay"));
  EXPECT_THAT(job.err(),
              ContainsRegex("timeout: rank (0 waited 3 s [^\n]*for rank 1|1 waited 3 s [^\n]*for rank 0)"));
  EXPECT_THAT(job.err(), Not(HasSubstr("was killed by ddp-launch")));
}

TEST(GraphFaultsOnGpus, F8R24ARankThatRunsTheStepWithoutItsGraphIsNamedAtOnce) {
  LaunchedJob job(replaying("eager"));
  ASSERT_TRUE(job.shows("fails", 60s));
  auto const failed = Clock::now();
  EXPECT_EQ(job.exit_code(), 3) << job.err();
  EXPECT_LT(Clock::now() - failed, 10s) << "it took a deadline";
  EXPECT_THAT(job.err(), ContainsRegex("\\[0\\] mismatch: [^\n]*replay"));
  EXPECT_THAT(job.err(), ContainsRegex("\\[1\\] mismatch: [^\n]*replay"));
  EXPECT_THAT(job.err(), Not(HasSubstr("was killed by ddp-launch")));
}

TEST(GraphFaultsOnGpus, R24AnErrorInsideOfAGraphReachesEveryRank) {
  LaunchedJob job(replaying("trap"));
  ASSERT_TRUE(job.shows("fails", 60s));
  auto const failed = Clock::now();
  EXPECT_EQ(job.exit_code(), 3) << job.err();
  EXPECT_LT(Clock::now() - failed, 15s) << "it took a deadline";
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 (pid "));
  EXPECT_THAT(job.err(), HasSubstr("[1] device: "));
  EXPECT_THAT(job.err(), ContainsRegex("\\[0\\] (peer_lost|aborted): [^\n]*rank 1"));
  EXPECT_THAT(job.err(), Not(HasSubstr("was killed by ddp-launch")));
}

TEST(GraphFaultsOnGpus, R24AnExceptionBetweenReplaysAndALeavingRankReachTheOther) {
  LaunchedJob thrown(replaying("exception"));
  EXPECT_EQ(thrown.exit_code(), 4) << thrown.err();
  EXPECT_THAT(thrown.err(), HasSubstr("[1] failed: the loss is not a number"));
  EXPECT_THAT(thrown.err(), ContainsRegex("\\[0\\] (peer_lost|aborted): [^\n]*rank 1"));
  EXPECT_THAT(thrown.err(), Not(HasSubstr("was killed by ddp-launch")));
  LaunchedJob left(replaying("return"));
  EXPECT_EQ(left.exit_code(), 3) << left.err();
  EXPECT_THAT(left.err(), HasSubstr("peer_lost: rank 1 is gone (left the group)"));
  EXPECT_THAT(left.err(), Not(HasSubstr("was killed by ddp-launch")));
}

TEST(GraphFaultsOnGpus, R24AJobThatEndsInOrderEndsWithItsGraphs) {
  LaunchedJob job(replaying("none"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

}  // namespace
}  // namespace ddp::testing
