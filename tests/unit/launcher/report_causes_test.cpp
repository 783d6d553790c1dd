// Which of several failures is the first cause.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>

#include "support/launcher/job_outcomes.hpp"

namespace ddp::launcher {
namespace {

using job_outcomes::error;
using job_outcomes::job_of;
using Manner = Failure::Manner;
using ::testing::HasSubstr;
using ::testing::Not;

// L8
TEST(Report, WhatOnlyFollowedIsAConsequence) {
  JobOutcome job = job_of(3);
  job.ranks[0].exit_code = 1;  // first to end, by its own word because of another
  job.ranks[0].error = error(ErrorCode::peer_lost, "rank 1 was lost");
  job.ranks[1].exit_code = 3;
  job.ranks[2].signal = SIGKILL;
  job.ranks[2].killed_by_launcher = true;
  EXPECT_EQ(first_cause(job.ranks), 1U);
  EXPECT_EQ(job_exit_code(job), 3);
  std::string const text = report(job);
  EXPECT_THAT(text, HasSubstr("first cause: rank 1 (pid 101, cpu:0) on host exited with code 3"));
  EXPECT_THAT(text, HasSubstr("consequences:\n[ddp-launch]   rank 0 (pid 100, cpu:0) exited with code 1: "
                              "peer_lost: rank 1 was lost\n"));
  EXPECT_THAT(text, HasSubstr("rank 2 (pid 102, cpu:0) was still running and was killed by ddp-launch"));
}

// B8
TEST(Report, ARankThatWasStoppedIsTheCauseOfADeadlineAndHasNoCode) {
  JobOutcome job = job_of(3);
  job.ranks[0].exit_code = 3;
  job.ranks[0].error = error(ErrorCode::timeout, Manner::silent, {Rank{2}}, 0);
  job.ranks[1].exit_code = 4;
  job.ranks[1].error = error(ErrorCode::aborted, "the group was ended by rank 0");
  job.ranks[2].signal = SIGKILL;
  job.ranks[2].killed_by_launcher = true;
  job.ranks[2].stopped = "by a signal (SIGSTOP, Ctrl-Z)";
  EXPECT_EQ(first_cause(job.ranks), 2U);
  EXPECT_EQ(job_exit_code(job), 3);
  std::string const text = report(job);
  EXPECT_THAT(text,
              HasSubstr("first cause: rank 2 (pid 102, cpu:0) on host was stopped by a signal (SIGSTOP, "
                        "Ctrl-Z), and then was killed by ddp-launch\n"));
  EXPECT_THAT(text, HasSubstr("consequences:\n[ddp-launch]   rank 0 "));
  EXPECT_THAT(text, Not(HasSubstr("out-of-memory killer")));
}

// B8
TEST(Report, OfSeveralRanksThatWereStoppedTheOneThatTheDeadlineNamesIsTheCause) {
  JobOutcome job = job_of(4);
  for (std::size_t const stopped : {1U, 2U, 3U}) {
    job.ranks[stopped].signal = SIGKILL;
    job.ranks[stopped].killed_by_launcher = true;
    job.ranks[stopped].stopped = "by a signal (SIGSTOP, Ctrl-Z)";
  }
  job.ranks[0].exit_code = 3;
  job.ranks[0].error = error(ErrorCode::timeout, Manner::stopped, {Rank{2}}, 0);
  EXPECT_EQ(first_cause(job.ranks), 2U);
  job.ranks[0].error = error(ErrorCode::timeout, Manner::silent, {Rank{1}, Rank{2}, Rank{3}}, 0);
  EXPECT_EQ(first_cause(job.ranks), 1U) << "any of them";
  job.ranks[0].error = error(ErrorCode::timeout, Manner::stopped, {}, 0);
  EXPECT_EQ(first_cause(job.ranks), 1U);
}

// B8
TEST(Report, ARankThatWasStoppedIsAConsequenceOfACrash) {
  JobOutcome job = job_of(2);
  job.ranks[0].signal = SIGSEGV;
  job.ranks[1].exit_code = 2;
  job.ranks[1].stopped = "by a debugger";
  EXPECT_EQ(first_cause(job.ranks), 0U);
  EXPECT_THAT(report(job),
              HasSubstr("rank 1 (pid 101, cpu:0) was stopped by a debugger, and then exited with "
                        "code 2"));
}

// F13: whoever reported its own trouble first is the cause, even if its process ended last
TEST(Report, AnEarlierReportBeatsAnEarlierEnd) {
  JobOutcome job = job_of(2);
  job.ranks[0].exit_code = 1;
  job.ranks[1].exit_code = 2;
  job.ranks[1].error = error(ErrorCode::out_of_memory, "no");
  job.ranks[1].first_trouble = RankOutcome::Clock::time_point{};
  EXPECT_EQ(first_cause(job.ranks), 1U);
}

TEST(Report, WhenAllOnlyFollowedTheFirstToEndIsNamed) {
  JobOutcome job = job_of(2);
  for (RankOutcome& rank : job.ranks) {
    rank.exit_code = 1;
    rank.error = error(ErrorCode::aborted, "somebody called abort()");
  }
  EXPECT_EQ(first_cause(job.ranks), 0U);
}

// F4
TEST(Report, AnExitWithoutLeavingIsAFailureIfAnotherRankSaysThatItWaited) {
  JobOutcome job = job_of(3);
  job.ranks[1].joined = true;
  job.ranks[0].exit_code = 3;
  job.ranks[0].error = error(ErrorCode::peer_lost, "rank 1 is gone");
  for (int code : {3, 0}) {  // it may have handled its error
    job.ranks[0].exit_code = code;
    EXPECT_EQ(first_cause(job.ranks), 1U);
    EXPECT_EQ(job_exit_code(job), 1);
    EXPECT_THAT(report(job),
                HasSubstr("left before the others: it exited with code 0 without leaving the group\n"
                          "[ddp-launch]   another rank needed it. exit() destroys no local variables"));
  }
  job.ranks[2].signal = SIGSEGV;
  EXPECT_EQ(first_cause(job.ranks), 2U) << "a failure that nobody else explains";
  job.ranks[2].signal = 0;
  job.ranks[1].left = true;
  EXPECT_EQ(job_exit_code(job), 0);
}

TEST(Report, AnExitWithoutLeavingIsAWarningIfNobodyWaited) {
  JobOutcome job = job_of(3);
  job.ranks[0].joined = job.ranks[1].joined = job.ranks[2].joined = true;
  job.ranks[2].left = true;
  EXPECT_EQ(first_cause(job.ranks), std::nullopt);
  EXPECT_EQ(job_exit_code(job), 0);
  EXPECT_THAT(report(job), HasSubstr("warning: ranks 0-1 exited with code 0 without leaving the group. "));
  job.forwarded_signal = SIGTERM;
  EXPECT_EQ(report(job), "[ddp-launch] the job was stopped by SIGTERM\n");
  JobOutcome alone = job_of(1);
  alone.ranks[0].joined = true;
  EXPECT_EQ(report(alone), "") << "there is nobody whom it could leave";
}

TEST(Report, ARankThatWasKilledSinceItWasStoppedIsTheCauseIfNothingElseFailed) {
  JobOutcome job = job_of(2);
  job.ranks[1].signal = SIGKILL;
  job.ranks[1].killed_by_launcher = true;
  job.ranks[1].stopped = "by a debugger";
  EXPECT_EQ(first_cause(job.ranks), 1U);
  EXPECT_EQ(job_exit_code(job), 1) << "it has no code of its own";
  EXPECT_THAT(report(job), HasSubstr("the others had ended, and the deadline passed\n"));
}

// A12: exit(0) in the middle of a step, which destroys a World in a global object: it leaves.
TEST(Report, ARankThatToldOfAnErrorAndLeftIsTheCauseOfWhatFollowed) {
  JobOutcome job = job_of(3);
  job.ranks[2].left = true;
  job.ranks[2].error = error(ErrorCode::invalid_state, "in the middle of step 20");
  EXPECT_EQ(first_cause(job.ranks), std::nullopt) << "whoever goes on and ends in order has not failed";
  EXPECT_EQ(job_exit_code(job), 0);
  job.ranks[0].exit_code = 4;
  job.ranks[0].error = error(ErrorCode::aborted, "the group was ended by rank 2");
  EXPECT_EQ(first_cause(job.ranks), 2U);
  EXPECT_EQ(job_exit_code(job), 1);
  std::string const text = report(job);
  EXPECT_THAT(text,
              HasSubstr("first cause: rank 2 (pid 102, cpu:0) on host exited with code 0 in the middle"));
  EXPECT_THAT(text, HasSubstr("its error: invalid_state: in the middle of step 20"));
  EXPECT_THAT(text,
              HasSubstr("consequences:\n[ddp-launch]   rank 0 (pid 100, cpu:0) exited with code 4: aborted"));
  job.ranks[1].exit_code = 3;  // of itself
  EXPECT_EQ(first_cause(job.ranks), 1U) << "a failure that nobody else explains";
}

// A12: exit(0) between collectives without a reducer, which tells nobody why
TEST(Report, ARankThatLeftInOrderIsTheCauseWhereTheOthersSayThatTheyNeededIt) {
  auto const left = [](std::optional<Rank> by, std::optional<Rank> ended_by) {
    return Failure{.code = ErrorCode::peer_lost,
                   .manner = Manner::left,
                   .ranks = {Rank{1}},
                   .operation = "barrier",
                   .by = by,
                   .ended_by = ended_by};
  };
  for (Failure const& failure : {left(Rank{0}, {}), left(Rank{2}, Rank{2}), left({}, {}),
                                 left(Rank{1}, Rank{1})}) {  // of the control plane; of its communicator
    std::string const message = to_string(failure);
    JobOutcome job = job_of(3);
    job.ranks[1].left = job.ranks[2].left = true;
    for (std::size_t const survivor : {0U, 2U}) {
      job.ranks[survivor].exit_code = 4;
      job.ranks[survivor].error = ReportedError{failure};
    }
    EXPECT_EQ(first_cause(job.ranks), 1U) << message;
    EXPECT_EQ(job_exit_code(job), 4) << "the rank that left has no code of its own";
    EXPECT_THAT(
        report(job),
        HasSubstr("first cause: rank 1 (pid 101, cpu:0) on host exited with code 0\n[ddp-launch]   it "
                  "left the group while others needed it\n[ddp-launch] consequences:\n"));
    job.ranks[2].error->failure.code = ErrorCode::io;  // of itself
    EXPECT_EQ(first_cause(job.ranks), 2U) << message;
    job.ranks[2].error->failure.code = ErrorCode::peer_lost;
    job.ranks[1].left = false;
    EXPECT_EQ(first_cause(job.ranks), 0U) << message;
  }
}

}  // namespace
}  // namespace ddp::launcher
