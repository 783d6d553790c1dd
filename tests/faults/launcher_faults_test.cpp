// What ddp-launch does when ranks, or it itself, die or stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/sanitized.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
using namespace std::chrono_literals;

std::size_t count(std::string const& text, std::string const& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// The pid of the job's process that was started as `name` with `argument`, e.g. a grandchild's.
std::size_t how_many(LaunchedJob const& job, std::string const& name) {
  auto const all = job.processes();
  return static_cast<std::size_t>(std::count_if(
      all.begin(), all.end(), [&](JobProcess const& each) { return each.name == name + "\n"; }));
}

bool wait_for_processes(LaunchedJob const& job, std::string const& name, std::size_t wanted) {
  for (auto const until = Clock::now() + 20s; Clock::now() < until; std::this_thread::sleep_for(10ms)) {
    if (how_many(job, name) == wanted) return true;
  }
  ADD_FAILURE() << how_many(job, name) << " processes " << name << ", expected " << wanted;
  return false;
}

// L9
TEST(ExitCodes, AreTheFirstCauses) {
  LaunchedJob three(shell_ranks(2, "exit $((RANK * 3))"));
  EXPECT_EQ(three.exit_code(), 3);
  LaunchedJob first(shell_ranks(3, "[ $RANK = 1 ] || sleep 0.$((RANK + 3)); exit $((RANK + 10))"));
  EXPECT_EQ(first.exit_code(), 11);
  EXPECT_THAT(first.err(), HasSubstr("first cause: rank 1 "));
  EXPECT_THAT(first.err(), HasSubstr("consequences:"));
}

// L7, L8, F1: the kill without a collective; the survivors are told through the control plane
TEST(KilledRank, IsNamedAtOnceAndTheOthersGetAnError) {
  auto const begin = Clock::now();
  LaunchedJob job(program_ranks(3, {"1=kill", "*=meet"}));
  EXPECT_TRUE(job.shows("was killed by signal 9 (SIGKILL); waiting up to 5 s for the others", 2s));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_LT(Clock::now() - begin, 3s) << "within the grace, since the others end by themselves";
  EXPECT_EQ(count(job.err(), "peer_lost: "), 2U) << "shown once, reported once\n" << job.err();
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 "));
  EXPECT_THAT(job.err(), HasSubstr("rank 1 died: killed by signal 9 (SIGKILL)"));
}

// L7
TEST(KilledRank, RanksThatDoNotEndByThemselvesAreKilledAfterTheGrace) {
  auto const begin = Clock::now();
  LaunchedJob job(shell_ranks(3, "[ $RANK = 2 ] && kill -KILL $$; trap '' TERM INT; sleep 60 & wait",
                              {"--failure-grace", "0.5"}));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_GE(Clock::now() - begin, 500ms);
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_THAT(job.err(), HasSubstr("ranks 0-1 did not end within 0.5 s: killing"));
  EXPECT_THAT(job.err(), HasSubstr("ranks 0-1: each was still running and was killed by ddp-launch"));
}

// F2
TEST(CrashedRank, TheSignalIsInTheReportAndInTheCode) {
  LaunchedJob segv(program_ranks(2, {"0=segv", "*=meet"}));
  EXPECT_EQ(segv.exit_code(), 139);
  EXPECT_THAT(segv.err(), HasSubstr("cpu:0) on "));
  EXPECT_THAT(segv.err(), HasSubstr("first cause: rank 0 "));
  EXPECT_THAT(segv.err(), HasSubstr("was killed by signal 11 (SIGSEGV)"));
  LaunchedJob abort(program_ranks(2, {"1=abort", "*=meet"}));
  EXPECT_EQ(abort.exit_code(), 134);
  EXPECT_THAT(abort.err(), HasSubstr("was killed by signal 6 (SIGABRT)"));
}

// L8
TEST(Report, HasTheRanksOwnWordsItsProgressAndItsLastLines) {
  LaunchedJob job(
      Words{"--cpus", "1", "--log-dir", "logs", "--", "/bin/sh", "-c",
            "i=0; while [ $i -lt 25 ]; do i=$((i+1)); echo line $i >&2; done; "
            "echo '{\"code\": \"io\", \"message\": \"disk is gone\"}' > $DDP_ERROR_FILE; exit 4"});
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_THAT(job.err(), HasSubstr("its error: io: disk is gone\n"));
  EXPECT_EQ(count(job.err(), "  | line "), 20U);
  EXPECT_THAT(job.err(), Not(HasSubstr("| line 5\n")));
  EXPECT_THAT(job.err(), HasSubstr("| line 6\n"));
  EXPECT_THAT(job.err(), HasSubstr("logs/rank0.out and logs/rank0.err"));
  EXPECT_TRUE(job.err().ends_with("[ddp-launch] exit code 4\n")) << "printed last";
  LaunchedJob told(program_ranks(2, {"1=mismatch", "*=meet"}));
  EXPECT_EQ(told.exit_code(), 5);
  EXPECT_THAT(told.err(), HasSubstr("last progress since the start: step 41\n"));
  EXPECT_THAT(told.err(), HasSubstr("its error: mismatch: shapes differ:\n"));
  EXPECT_THAT(told.err(), HasSubstr("[2] here, [3] on rank 0\n"));
  EXPECT_THAT(told.err(), HasSubstr("| about to give up\n"));
}

// F4
TEST(EarlyLeave, IsAFailureOfARankThatHadJoined) {
  LaunchedJob job(program_ranks(3, {"1=early-exit", "*=meet"}));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(),
              HasSubstr("left before the others: it exited with code 0 without leaving the group"));
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 "));
  EXPECT_THAT(job.err(), HasSubstr("another rank needed it. exit() destroys no local variables: return from "
                                   "main(), or destroy the World before exit()\n"));
}

TEST(EarlyLeave, IsAWarningWhereNoRankWaitsForAnother) {
  LaunchedJob job(program_ranks(3, {"*=exit-in-world"}));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(
      job.err(),
      "[ddp-launch] warning: ranks 0-2 exited with code 0 without leaving the group. No rank waited, so "
      "the job is well. exit() destroys no local variables: return from main(), or destroy the World "
      "before exit()\n");
}

// F4
TEST(EarlyLeave, DoesNotConcernProgramsThatNeverJoin) {
  LaunchedJob job(program_ranks(2, {"*=exit"}));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.err(), "");
}

// F9
TEST(MissingRank, IsListedByTheDeadlineOfTheOthers) {
  LaunchedJob job(program_ranks(3, {"2=exec", "*=meet-briefly"}, {"--failure-grace", "0.3"}));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(), HasSubstr("timeout: "));
  EXPECT_THAT(job.err(), ::testing::ContainsRegex("missing[^\n]*2|rank 2[^\n]*missing|waiting for[^\n]*2"));
  EXPECT_THAT(job.err(), HasSubstr("rank 2 did not end within 0.3 s: killing"));
}

// F5
TEST(KilledLauncher, TakesEveryRankAndGrandchildWithIt) {
  LaunchedJob job(
      shell_ranks(2, "sleep 300 & set -m; sleep 300 & set +m; trap '' HUP TERM INT; echo up; wait"));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  ASSERT_TRUE(wait_for_processes(job, "sleep", 4));
  ASSERT_TRUE(wait_for_processes(job, "ddp-guard", 1));
  job.send(SIGKILL);
  EXPECT_TRUE(job.all_gone_within(2s)) << "L7: no rank survives 2 s, grandchildren included";
  EXPECT_EQ(job.exit_code(), 137);
}

// F5: also right after the start, before anybody is up
TEST(KilledLauncher, LeavesNothingWheneverItDies) {
  for (auto const age : {0ms, 2ms, 5ms, 10ms, 20ms, 40ms}) {
    LaunchedJob job(shell_ranks(4, "sleep 300 & sleep 300"));
    std::this_thread::sleep_for(age);
    job.send(SIGKILL);
    EXPECT_TRUE(job.all_gone_within(2s)) << "killed after " << age.count() << " ms";
    EXPECT_EQ(job.exit_code(), 137);
  }
}

// F5: the guard is in nobody's process group, so what kills the launcher's group does not kill the guard
// F5, L7: the guard is not what "pkill -f ddp-launch" finds, and a killed one is replaced
TEST(KilledLauncher, TakesEveryRankAlsoAfterItsGuardWasKilled) {
  LaunchedJob job(shell_ranks(2, "sleep 60 & echo up; wait"));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  // It has its name a little after it began.
  auto const guard_other_than = [&job](pid_t known) -> pid_t {
    for (Deadline const deadline = Deadline::after(5s); !deadline.expired();
         std::this_thread::sleep_for(5ms)) {
      for (JobProcess const& process : job.processes()) {
        if (process.name == "ddp-guard\n" && process.pid != known) return process.pid;
      }
    }
    return -1;
  };
  pid_t const first = guard_other_than(-1);
  ASSERT_GT(first, 0);
  std::ifstream in("/proc/" + std::to_string(first) + "/cmdline");
  std::string const words{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(words, ::testing::StartsWith("ddp-guard"));
  EXPECT_THAT(words, ::testing::Not(HasSubstr("ddp-launch")));
  kill(first, SIGKILL);
  ASSERT_NE(guard_other_than(first), -1);
  std::this_thread::sleep_for(50ms);  // it has heard of the ranks
  job.send(SIGKILL);
  EXPECT_TRUE(job.all_gone_within(2s)) << "a grandchild lives";
  EXPECT_EQ(job.exit_code(), 137);
}

TEST(KilledLauncher, AGuardThatIsStoppedDoesNotOutliveIt) {
  LaunchedJob job(shell_ranks(2, "sleep 60 & echo up; wait"));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  ASSERT_TRUE(wait_for_processes(job, "ddp-guard", 1));
  for (JobProcess const& process : job.processes()) {
    if (process.name == "ddp-guard\n") kill(process.pid, SIGSTOP);
  }
  job.send(SIGKILL);
  EXPECT_TRUE(job.all_gone_within(5s));
  EXPECT_EQ(job.exit_code(), 137);
}

TEST(KilledLauncher, AGuardThatDiesFirstDoesNotHurtTheJob) {
  LaunchedJob job(shell_ranks(1, "echo up; sleep 0.5; echo done"));
  ASSERT_TRUE(job.shows("up"));
  ASSERT_TRUE(wait_for_processes(job, "ddp-guard", 1));
  for (JobProcess const& process : job.processes()) {
    if (process.name == "ddp-guard\n") kill(process.pid, SIGKILL);
  }
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.out(), HasSubstr("done"));
}

// F6: that ranks can use the time for a checkpoint is the ranks' part
TEST(StoppedJob, RanksGetTheSignalAndTimeToEnd) {
  LaunchedJob job(shell_ranks(
      2, "trap 'sleep 0.3; echo saved $RANK; exit 0' TERM; echo up; while :; do sleep 0.05; done"));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 0) << "every rank ended in order";
  EXPECT_THAT(job.out(), HasSubstr("[0] saved 0\n"));
  EXPECT_THAT(job.out(), HasSubstr("[1] saved 1\n"));
  EXPECT_THAT(job.err(), HasSubstr("SIGTERM: passed on to the ranks, which have 30 s to end"));
}

// L7, L9
TEST(StoppedJob, TheCodeIsTheSignalsUnlessAllEndInOrder) {
  for (int const signal : {SIGINT, SIGTERM, SIGHUP}) {
    LaunchedJob job(
        shell_ranks(2, "echo up; [ $RANK = 0 ] && trap 'exit 0' INT TERM HUP; while :; do sleep 0.05; done"));
    ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
    std::this_thread::sleep_for(100ms);  // the trap comes after the word
    job.send(signal);
    EXPECT_EQ(job.exit_code(), 128 + signal);
    EXPECT_THAT(job.err(), HasSubstr("the job was stopped by SIG"));
    EXPECT_THAT(job.err(), Not(HasSubstr("first cause")));
  }
}

// L7
TEST(StoppedJob, RanksThatIgnoreTheSignalAreKilledAfterTheGrace) {
  LaunchedJob job(shell_ranks(2, "trap '' TERM; echo up; while :; do sleep 0.05; done", {"--grace", "0.4"}));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  auto const begin = Clock::now();
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 143);
  EXPECT_GE(Clock::now() - begin, 400ms);
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_THAT(job.err(), HasSubstr("did not end within 0.4 s: killing"));
}

// L7
TEST(StoppedJob, ASecondCtrlCKillsAtOnce) {
  LaunchedJob job(shell_ranks(2, "trap '' INT; echo up; while :; do sleep 0.05; done"));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  auto const begin = Clock::now();
  job.send(SIGINT);
  ASSERT_TRUE(job.shows("a second Ctrl-C kills them"));
  job.send(SIGINT);  // the same key press, delivered twice
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(job.processes().empty(), false);
  job.send(SIGINT);
  EXPECT_EQ(job.exit_code(), 130);
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_THAT(job.err(), HasSubstr("second interrupt: killing the ranks"));
}

// L7: a reader that does not read must not keep the launcher from watching
TEST(StalledReader, DoesNotStopTheWatch) {
  auto const begin = Clock::now();
  LaunchedJob job(shell_ranks(2, "[ $RANK = 0 ] && exec yes; sleep 0.5; exit 3", {"--failure-grace", "0.2"}),
                  {.read_output = false});
  EXPECT_TRUE(job.shows("exited with code 3; waiting up to 0.2 s", 3s));
  EXPECT_TRUE(job.shows("rank 0 did not end within 0.2 s: killing", 3s));
  EXPECT_LT(Clock::now() - begin, 5s);
  job.send(SIGKILL);  // it would go on offering its output for half a minute
  EXPECT_EQ(job.exit_code(), 137);
  if (!kSanitized) {
    EXPECT_LT(job.peak_kilobytes(), 32000);
  }
}

// F20
TEST(MissingProgram, IsSaidOnce) {
  for (Words const& program : std::vector<Words>{{"./nothing"}, {"no-such-program-at-all"}}) {
    LaunchedJob job(Words{"--cpus", "4", program[0]});
    EXPECT_EQ(job.exit_code(), 127);
    EXPECT_EQ(count(job.err(), "\n"), 1U) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("program not found: "));
    EXPECT_TRUE(std::filesystem::is_empty(job.directory()));
  }
}

// F20
TEST(UnusableProgram, IsSaidOnce) {
  LaunchedJob plain(Words{"--cpus", "4", "/etc/passwd"});
  EXPECT_EQ(plain.exit_code(), 126);
  EXPECT_EQ(count(plain.err(), "\n"), 1U) << plain.err();
  LaunchedJob directory(Words{"--cpus", "4", "/tmp"});
  EXPECT_EQ(directory.exit_code(), 126);
  EXPECT_THAT(directory.err(), HasSubstr("it is a directory"));
}

// F20: what only exec can find out
TEST(UnusableProgram, ThatExecRefusesIsSaidOnce) {
  auto const script = std::filesystem::temp_directory_path() / ("ddp-no-format-" + std::to_string(getpid()));
  std::ofstream(script) << "just text\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  LaunchedJob text(Words{"--cpus", "4", "--no-log-files", script.string()});
  EXPECT_EQ(text.exit_code(), 126);
  EXPECT_EQ(count(text.err(), "\n"), 1U) << text.err();
  EXPECT_THAT(text.err(), HasSubstr("Exec format error"));
  std::ofstream(script) << "#!/no/such/interpreter\n";
  LaunchedJob interpreter(Words{"--cpus", "4", "--no-log-files", script.string()});
  EXPECT_EQ(interpreter.exit_code(), 127);
  EXPECT_EQ(count(interpreter.err(), "\n"), 1U) << interpreter.err();
  std::filesystem::remove(script);
}

// Bad input of the issue: one clear message, exit 64, nothing started
TEST(BadOptions, EndIn64WithOneMessage) {
  for (Words const& words : std::vector<Words>{{"--cpuz", "2", "/bin/true"},
                                               {"--cpus", "2", "--gpus", "0", "/bin/true"},
                                               {"--cpus", "0", "/bin/true"},
                                               {"--engine", "ssh", "/bin/true"},
                                               {"--virtual", "0", "/bin/true"},
                                               {}}) {
    LaunchedJob job(words);
    EXPECT_EQ(job.exit_code(), 64) << job.err();
    EXPECT_EQ(count(job.err(), "ddp-launch: "), 1U) << job.err();
    EXPECT_TRUE(std::filesystem::is_empty(job.directory()));
  }
}

TEST(OddErrorFile, AFifoDoesNotStopTheLauncher) {
  LaunchedJob job(shell_ranks(2, "if [ $RANK = 0 ]; then mkfifo $DDP_ERROR_FILE; exit 3; fi; sleep 30",
                              {"--failure-grace", "0.2"}));
  EXPECT_EQ(job.exit_code(std::chrono::seconds(20)), 3);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0"));
}

TEST(PassedOnSignal, L7UserSignalsReachTheRanksAndEndNothing) {
  LaunchedJob job(
      shell_ranks(2, "trap 'echo user signal; exit 0' USR1; echo waiting; while :; do sleep 0.05; done"));
  ASSERT_TRUE(job.shows("[0] waiting"));
  ASSERT_TRUE(job.shows("[1] waiting"));
  job.send(SIGUSR1);
  EXPECT_EQ(job.exit_code(std::chrono::seconds(20)), 0);
  EXPECT_THAT(job.out(), HasSubstr("[0] user signal"));
  EXPECT_THAT(job.out(), HasSubstr("[1] user signal"));
}

TEST(StalledReader, GetsTheReportOnStderrAndASignalEndsTheWait) {
  LaunchedJob job(shell_ranks(1, "seq 1 100000; exit 3"), {.read_output = false});
  ASSERT_TRUE(job.shows("first cause: rank 0"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(std::chrono::seconds(10)), 3);
  EXPECT_THAT(job.err(), HasSubstr("were not shown"));
}

}  // namespace
}  // namespace ddp::testing
