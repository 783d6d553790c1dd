#include "launcher/report/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using Manner = Failure::Manner;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Rank r ended well at r milliseconds.
JobOutcome job_of(int size) {
  JobOutcome job;
  job.host = "host";
  job.program = "./train";
  for (int r = 0; r < size; ++r) {
    RankOutcome rank;
    rank.rank = Rank{r};
    rank.pid = 100 + r;
    rank.device = Device{};
    rank.ended = true;
    rank.first_trouble = RankOutcome::Clock::time_point{} + milliseconds(r + 1);
    job.ranks.push_back(rank);
  }
  return job;
}

ReportedError error(ErrorCode code, std::string words) {
  return {{.code = code, .detail = std::move(words)}};
}

/// What `by` says when it waited in vain for `ranks`.
ReportedError error(ErrorCode code, Failure::Manner manner, std::vector<Rank> ranks, int by) {
  return {{.code = code,
           .manner = manner,
           .ranks = std::move(ranks),
           .operation = "barrier",
           .by = Rank{by},
           .waited = milliseconds(2000)}};
}

TEST(Report, SaysNothingWhenNothingFailed) {
  JobOutcome job = job_of(3);
  EXPECT_EQ(report(job), "");
  EXPECT_EQ(job_exit_code(job), 0);
}

// L8, L9
TEST(Report, NamesTheFirstCauseWithAllThatIsKnown) {
  JobOutcome job = job_of(3);
  RankOutcome& cause = job.ranks[2];
  cause.signal = SIGSEGV;
  cause.core_dumped = true;
  cause.progress = Progress{41, Progress::Pace{3.5, Rank{1}, 0.5}};
  cause.error = error(ErrorCode::mismatch, "first\nsecond");
  cause.last_stderr = {"one", "two"};
  cause.out_file = "logs/rank2.out";
  cause.err_file = "logs/rank2.err";
  std::string const text = report(job);
  for (char const* part :
       {"first cause: rank 2 (pid 102, cpu:0) on host was killed by signal 11 (SIGSEGV), core dumped",
        "last progress: step 41, 3.500 ms, slowest rank 1 by 0.500 ms", "its error: mismatch: first\n",
        "second\n", "| one\n", "| two\n", "logs/rank2.out and logs/rank2.err", "exit code 139"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("consequences"))) << "the others ended well";
  EXPECT_EQ(job_exit_code(job), 139);
}

// L8
TEST(Report, NamesTheDevice) {
  RankOutcome rank;
  rank.rank = Rank{1};
  rank.pid = 7;
  rank.device = Device{DeviceKind::cuda, DeviceIndex{1}};
  rank.gpu = "GPU-27ae";
  EXPECT_EQ(describe_rank(rank), "rank 1 (pid 7, cuda:1 = GPU-27ae)");
}

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

// B10
TEST(Report, RanksThatEndedAlikeShareALine) {
  JobOutcome job = job_of(64);
  job.ranks[3].signal = SIGKILL;
  for (RankOutcome& rank : job.ranks) {
    if (rank.rank == 3 || rank.rank == 9) continue;
    rank.exit_code = 1;
    rank.first_trouble += milliseconds(100);
    rank.error = error(ErrorCode::peer_lost, Manner::killed, {Rank{3}}, rank.rank.value());
  }
  job.ranks[12].exit_code = 2;
  EXPECT_THAT(report(job),
              HasSubstr("consequences:\n"
                        "[ddp-launch]   ranks 0-2,4-8,10-11,13-63: each exited with code 1: peer_lost: "
                        "rank 3 is gone while this rank was in barrier\n"
                        "[ddp-launch]   rank 12 (pid 112, cpu:0) exited with code 2: peer_lost: rank 3 "
                        "is gone while rank 12 was in barrier\n"
                        "[ddp-launch] exit code 137\n"));
}

// B10
TEST(Report, WhatTheLauncherDidIsNoCause) {
  JobOutcome job = job_of(3);
  job.forwarded_signal = SIGTERM;
  for (RankOutcome& rank : job.ranks) {
    rank.signal = SIGKILL;
    rank.killed_by_launcher = true;
  }
  EXPECT_EQ(first_cause(job.ranks), std::nullopt);
  EXPECT_EQ(report(job),
            "[ddp-launch] the job was stopped by SIGTERM\n"
            "[ddp-launch]   ranks 0-2: each was still running and was killed by ddp-launch\n");
  EXPECT_EQ(job_exit_code(job), 143);
  job.ranks[1].ended = false;
  job.ranks[1].signal = 0;
  EXPECT_THAT(report(job), HasSubstr("rank 1 (pid 101, cpu:0) did not end even after SIGKILL"));
  job.ranks[0].killed_by_launcher = false;
  EXPECT_EQ(first_cause(job.ranks), 0U) << "killed by somebody else";
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

// L7, L9
TEST(Report, AStoppedJobIsNoFailure) {
  JobOutcome job = job_of(2);
  job.forwarded_signal = SIGTERM;
  EXPECT_EQ(job_exit_code(job), 0) << "all ranks ended in order";
  job.ranks[0].signal = SIGTERM;
  EXPECT_EQ(job_exit_code(job), 143);
  EXPECT_EQ(report(job), "[ddp-launch] the job was stopped by SIGTERM\n");
  job.ranks[1].signal = SIGSEGV;
  EXPECT_EQ(job_exit_code(job), 143);
  EXPECT_THAT(report(job), HasSubstr("rank 1 (pid 101, cpu:0) was killed by signal 11"));
}

TEST(Report, AFailureBeforeTheSignalKeepsItsCode) {
  JobOutcome job = job_of(2);
  job.ranks[1].exit_code = 9;
  job.ranks[0].signal = SIGTERM;
  job.ranks[0].first_trouble += milliseconds(10);
  job.forwarded_signal = SIGTERM;
  job.failed_before_signal = true;
  EXPECT_EQ(job_exit_code(job), 9);
  EXPECT_THAT(report(job), HasSubstr("first cause: rank 1"));
}

// F20: exec itself failed
TEST(Report, AProgramThatCannotStartIsSaidOnce) {
  JobOutcome job = job_of(3);
  for (RankOutcome& rank : job.ranks) {
    rank.exec_error = ENOEXEC;
    rank.exit_code = 126;
  }
  EXPECT_THAT(report(job), HasSubstr("./train could not be started: Exec format error"));
  EXPECT_EQ(report(job).find('\n'), report(job).size() - 1) << "one line";
  EXPECT_EQ(job_exit_code(job), 126);
}

TEST(Report, TheFirstFailureIsOneLine) {
  JobOutcome job = job_of(4);
  job.ranks[2].signal = SIGKILL;
  EXPECT_EQ(first_failure_line(job.ranks[2], 4, 3, milliseconds(2500)),
            "rank 2 (pid 102, cpu:0) was killed by signal 9 (SIGKILL); waiting up to 2.5 s for the others");
}

// L8
TEST(Report, R26AJobThatSurvivedEndsWithZeroAndNamesItsLosses) {
  JobOutcome job = job_of(4);
  job.min_ranks = 2;
  job.ranks[1].signal = SIGKILL;
  job.ranks[1].progress = Progress{41};
  job.ranks[1].survived = true;
  job.ranks[3].exit_code = 5;  // when the others had ended, so that nobody had to go on
  EXPECT_EQ(job_exit_code(job), 0);
  EXPECT_FALSE(named_cause(job));
  EXPECT_EQ(report(job),
            "[ddp-launch] went on without rank 1 (pid 101, cpu:0), which was killed by signal 9 (SIGKILL)\n"
            "[ddp-launch]   killed from outside: often the kernel's or the container's out-of-memory killer "
            "(dmesg)\n"
            "[ddp-launch]   last progress: step 41\n"
            "[ddp-launch] went on without rank 3 (pid 103, cpu:0), which exited with code 5\n");
  job.output_lost = true;
  EXPECT_EQ(job_exit_code(job), 74);
}

TEST(Report, R26WhoLeftEarlyAndWasNeededIsALossToo) {
  JobOutcome job = job_of(3);
  job.min_ranks = 1;
  job.ranks[1].joined = true;
  job.ranks[1].survived = true;
  EXPECT_EQ(job_exit_code(job), 0);
  EXPECT_EQ(report(job),
            "[ddp-launch] went on without rank 1 (pid 101, cpu:0), which left before the others: it exited "
            "with code 0 without leaving the group\n");
}

TEST(Report, R26WhoIgnoresALossAndExitsWithZeroHasNotEndedWell) {
  JobOutcome job = job_of(3);
  job.min_ranks = 1;
  job.ranks[2].signal = SIGKILL;
  for (int const r : {0, 1}) {
    job.ranks[static_cast<std::size_t>(r)].joined = job.ranks[static_cast<std::size_t>(r)].left = true;
  }
  ReportedError const loss{
      {.code = ErrorCode::peer_lost, .manner = Failure::Manner::killed, .ranks = {Rank{2}}, .status = 9}};
  job.ranks[0].error = loss;
  EXPECT_EQ(job_exit_code(job), 0) << "rank 1 went on";
  EXPECT_THAT(report(job),
              HasSubstr("went on without rank 0 (pid 100, cpu:0), which exited with code 0 without "
                        "World::rebuild(): peer_lost: rank 2 died"));
  job.ranks[1].error = loss;
  EXPECT_EQ(job_exit_code(job), 137);
  EXPECT_THAT(report(job),
              AllOf(HasSubstr("first cause: rank 2 (pid 102, cpu:0) on host was killed by signal 9"),
                    HasSubstr("ranks 0-1: each exited with code 0 without World::rebuild(): ")));
  job.ranks[1].error->failure.manner = Failure::Manner::left;
  EXPECT_EQ(job_exit_code(job), 0) << "its data ended later than that of others";
}

TEST(Report, R26WithTooFewThatEndWellTheCauseIsALaterFailure) {
  JobOutcome job = job_of(3);
  job.min_ranks = 2;
  job.ranks[0].signal = SIGKILL;
  job.ranks[0].survived = true;
  job.ranks[1].signal = SIGSEGV;
  EXPECT_EQ(job_exit_code(job), 139);
  EXPECT_THAT(report(job), HasSubstr("first cause: rank 1 (pid 101, cpu:0) on host was killed by signal 11"));
  EXPECT_THAT(report(job),
              HasSubstr("went on without rank 0 (pid 100, cpu:0), which was killed by signal 9"));
  job.min_ranks.reset();
  job.ranks[0].survived = false;
  EXPECT_EQ(job_exit_code(job), 137) << "without --survive";
}

}  // namespace
}  // namespace ddp::launcher
