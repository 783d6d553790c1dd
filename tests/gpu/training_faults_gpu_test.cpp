// Faults of ranks that train on GPUs: on one each, with NCCL, and on one that they share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "support/launcher/launched_job.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

enum class Cards { one_each, shared };

class TrainingFaultsOnGpus : public ::testing::TestWithParam<Cards> {
 protected:
  /// Three where there are so many GPUs.
  static bool are_three() { return GetParam() == Cards::shared || logical_devices().size() > 2; }

  /// Rank 1 is the faulty one.
  static Words training(std::string const& fault) {
    Words words{"--gpus", "0", "--virtual", "3"};
    if (GetParam() == Cards::one_each) words = {"--gpus", are_three() ? "0,1,2" : "0,1"};
    words.insert(words.end(), {"--no-log-files", "--", DDP_TRAINING_RANK, fault, "1"});
    return words;
  }
};

TEST_P(TrainingFaultsOnGpus, F1AKilledRankIsNamedWithinASecondAndEveryOtherRankGetsAnError) {
  LaunchedJob job(training("kill-in-all-reduce"));
  ASSERT_TRUE(job.shows("dies in 0.1 s", 60s));
  auto const alive = std::chrono::steady_clock::now();
  ASSERT_TRUE(job.shows("rank 1 (pid"));
  auto const named = std::chrono::steady_clock::now();
  EXPECT_LT(named - alive, 1100ms);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_LT(std::chrono::steady_clock::now() - named, 5s) << "survivors waited for the grace to pass";
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 (pid "));
  EXPECT_THAT(job.err(), HasSubstr(", cuda:1 = GPU-"));
  EXPECT_THAT(job.err(), HasSubstr("SIGKILL"));
  EXPECT_THAT(job.err(), HasSubstr("[0] peer_lost: "));
  if (are_three()) {
    EXPECT_THAT(job.err(), HasSubstr("[2] peer_lost: "));
  }
  EXPECT_THAT(job.err(), HasSubstr("rank 1 is gone"));
  EXPECT_THAT(job.err(), Not(HasSubstr("was killed by ddp-launch")));
}

TEST_P(TrainingFaultsOnGpus, F9ADeadlineListsTheRankThatNeverCallsInit) {
  LaunchedJob job(training("no-init"), {.environment = {"DDP_INIT_TIMEOUT=10"}});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("timeout: "));
  EXPECT_THAT(job.err(), ::testing::ContainsRegex("rank 1[^0-9]"));
  EXPECT_THAT(job.err(), Not(HasSubstr("missing: rank 0")));
}

TEST_P(TrainingFaultsOnGpus, F13OutOfMemoryOnOneDeviceIsTheFirstCause) {
  struct Case {
    char const* fault;
    int exit_code;
  };
  for (Case const& each : {Case{"out-of-memory", 3}, Case{"out-of-memory-uncaught", 134}}) {
    LaunchedJob job(training(each.fault));
    EXPECT_EQ(job.exit_code(), each.exit_code) << each.fault;
    EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 (pid "));
    EXPECT_THAT(job.err(), HasSubstr("out of memory on cuda:1")) << each.fault;
    EXPECT_THAT(job.err(), Not(HasSubstr("was killed by ddp-launch"))) << "its peers got an error in time";
  }
}

TEST_P(TrainingFaultsOnGpus, F3AStoppedRankIsTheFirstCauseAndKilledAtTheEnd) {  // B8
  LaunchedJob job(training("stop"), {.environment = {"DDP_TIMEOUT=3"}});
  EXPECT_EQ(job.exit_code(), 3) << job.err();
  EXPECT_THAT(job.err(), ::testing::ContainsRegex("rank 1 \\(process [0-9]+\\) is stopped by a signal"));
  EXPECT_THAT(job.err(), ::testing::ContainsRegex("first cause: rank 1 [^\n]*was stopped by a signal"));
}

TEST_P(TrainingFaultsOnGpus, B7CtrlZStopsTheRanksTooAndNoDeadlineRuns) {
  LaunchedJob job(training("late"), {.environment = {"DDP_TIMEOUT=3"}});
  ASSERT_TRUE(job.shows("comes later", 60s));
  job.send(SIGTSTP);
  ASSERT_TRUE(job.stops());
  std::this_thread::sleep_for(5s);
  job.send(SIGCONT);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

INSTANTIATE_TEST_SUITE_P(Cards, TrainingFaultsOnGpus, ::testing::Values(Cards::one_each, Cards::shared),
                         [](auto const& cards) {
                           return cards.param == Cards::one_each ? "OneEach" : "Shared";
                         });

}  // namespace
}  // namespace ddp::testing
