// When a failed group is started again (L10).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/gpu_choice.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/restart.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

GenerationEnd failure(bool made_step, std::chrono::milliseconds lived = 5s) {
  return {.failed = true, .all_gone = true, .made_step = made_step, .joined = true, .lived = lived};
}

TEST(RestartPolicy, L10RestartsAtMostAsOftenAsItWasTold) {
  RestartPolicy policy(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(policy.after(failure(true)).restart);
  auto const last = policy.after(failure(true));
  EXPECT_FALSE(last.restart);
  EXPECT_THAT(last.why_not, HasSubstr("3 of 3 were used"));
}

TEST(RestartPolicy, WithoutTheOptionAFailureIsTheEndAndNeedsNoWord) {
  auto const decision = RestartPolicy(0).after(failure(true));
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.why_not, "");
}

TEST(RestartPolicy, AGoodEndIsTheEnd) {
  EXPECT_FALSE(RestartPolicy(3).after({.failed = false, .made_step = true}).restart);
}

TEST(RestartPolicy, L10GivesUpWhenTwoRestartsInARowEndBeforeTheFirstStep) {
  RestartPolicy policy(100);
  EXPECT_TRUE(policy.after(failure(false)).restart);  // the first start is no restart
  EXPECT_TRUE(policy.after(failure(false)).restart);
  auto const last = policy.after(failure(false));
  EXPECT_FALSE(last.restart);
  EXPECT_THAT(last.why_not, HasSubstr("2 in a row ended before their first step"));
}

TEST(RestartPolicy, AStepBetweenThemCountsAnew) {
  RestartPolicy policy(100);
  EXPECT_TRUE(policy.after(failure(true)).restart);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(policy.after(failure(false)).restart);
    EXPECT_TRUE(policy.after(failure(true)).restart);
  }
}

TEST(RestartPolicy, L10TheFirstRestartIsAtOnceAndLaterOnesBackOff) {
  RestartPolicy policy(100);
  std::vector<std::chrono::milliseconds> delays;
  for (int i = 0; i < 9; ++i) delays.push_back(policy.after(failure(true)).delay);
  EXPECT_THAT(delays, ::testing::ElementsAre(0s, 1s, 2s, 4s, 8s, 16s, 30s, 30s, 30s));
  EXPECT_EQ(policy.after(failure(true, 61s)).delay, 0s) << "an undisturbed minute";
  EXPECT_EQ(policy.after(failure(true)).delay, 0s);
  EXPECT_EQ(policy.after(failure(true)).delay, 1s);
}

TEST(RestartPolicy, OfProgramsThatNeverJoinAMinuteCountsAsAStep) {
  auto const end = [](std::chrono::milliseconds lived) {
    return GenerationEnd{
        .failed = true, .all_gone = true, .made_step = false, .joined = false, .lived = lived};
  };
  RestartPolicy policy(100);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(policy.after(end(61s)).restart);
  EXPECT_TRUE(policy.after(end(1s)).restart);
  EXPECT_FALSE(policy.after(end(1s)).restart);
}

TEST(RestartPolicy, WhileAnOldProcessIsThereNothingIsStarted) {
  GenerationEnd end = failure(true);
  end.all_gone = false;
  EXPECT_THAT(RestartPolicy(3).after(end).why_not, HasSubstr("may still be there"));
}

TEST(GenerationEnd, SumsUpTheRanks) {
  JobOutcome job;
  job.ranks.resize(2);
  for (RankOutcome& rank : job.ranks) {
    rank.pid = 7;
    rank.ended = true;
  }
  EXPECT_FALSE(summarize(job, 1s).failed);
  EXPECT_FALSE(summarize(job, 1s).made_step);
  job.ranks[1].signal = SIGKILL;
  job.ranks[0].progress = Progress{1};
  job.ranks[0].joined = true;
  auto const end = summarize(job, 1s);
  EXPECT_TRUE(end.failed && end.made_step && end.joined && end.all_gone);
  job.ranks[0].ended = false;
  EXPECT_FALSE(summarize(job, 1s).all_gone);
}

TEST(GenerationEnd, AnEndThatWasAskedForOrAProgramThatDoesNotStartIsNoFailureToRestart) {
  JobOutcome job;
  job.ranks.resize(1);
  job.ranks[0].ended = true;
  job.ranks[0].signal = SIGTERM;
  job.forwarded_signal = SIGTERM;
  EXPECT_FALSE(summarize(job, 1s).failed);
  job.forwarded_signal = 0;
  EXPECT_TRUE(summarize(job, 1s).failed);
  job.ranks[0].exec_error = 2;
  EXPECT_FALSE(summarize(job, 1s).failed);
}

TEST(AwaitFreeGpus, L10CallsAgainWhileAGpuIsFull) {
  int calls = 0;
  await_free_gpus(
      [&] {
        if (++calls < 3) throw ExitError(exit_code::kRetry, "GPU 0 has 1 MiB free");
      },
      kTimeoutAtRestart);
  EXPECT_EQ(calls, 3);
  EXPECT_THROW(await_free_gpus([] { throw ExitError(exit_code::kRetry, "GPU 0 has 1 MiB free"); }, 0ms),
               ExitError);
  EXPECT_THROW(await_free_gpus(
                   [&] {
                     ++calls;
                     throw ExitError(exit_code::kNoDevice, "no GPU 7");
                   },
                   kTimeoutAtRestart),
               ExitError);
  EXPECT_EQ(calls, 4) << "what waiting does not mend is not tried again";
}

}  // namespace
}  // namespace ddp::launcher
