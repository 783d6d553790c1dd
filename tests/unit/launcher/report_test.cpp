#include "launcher/report/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "support/launcher/job_outcomes.hpp"

namespace ddp::launcher {
namespace {

using job_outcomes::error;
using job_outcomes::job_of;
using std::chrono::milliseconds;
using Manner = Failure::Manner;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
        "last progress since the start: step 41, 3.500 ms, slowest rank 1 by 0.500 ms",
        "its error: mismatch: first\n", "second\n", "| one\n", "| two\n", "logs/rank2.out and logs/rank2.err",
        "exit code 139"}) {
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
            "[ddp-launch]   last progress since the start: step 41\n"
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
