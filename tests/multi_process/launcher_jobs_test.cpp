// Jobs that go well, seen from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "support/launcher/launched_job.hpp"
#include "support/sanitized.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Words = std::vector<std::string>;

std::string content(std::filesystem::path const& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t count(std::string const& text, std::string const& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// L1
TEST(LauncherRanks, AsManyAsToldAreStarted) {
  LaunchedJob job(shell_ranks(5, "echo $RANK/$WORLD_SIZE"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.sorted_lines(), ElementsAre("[0] 0/5", "[1] 1/5", "[2] 2/5", "[3] 3/5", "[4] 4/5"));
}

// L2: CPU ranks see no GPU, whatever was inherited
TEST(LauncherRanks, CpuRanksSeeNoGpu) {
  LaunchedJob job(shell_ranks(1, "echo \"${CUDA_VISIBLE_DEVICES-unset}.\""),
                  {.environment = {"CUDA_VISIBLE_DEVICES=3"}});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] .\n");
}

// L4
TEST(LauncherEnvironment, EveryRankHasTheContractsVariables) {
  LaunchedJob job(
      shell_ranks(2,
                  "[ $RANK = 1 ] && env | grep -E '^(RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|TORCHELASTIC_"
                  "|DDP_(JOB|GEN|CON|ERR))' | sort; true"));
  EXPECT_EQ(job.exit_code(), 0);
  std::string const text = job.out();
  for (char const* part :
       {"] RANK=1\n", "] WORLD_SIZE=2\n", "] LOCAL_RANK=1\n", "] LOCAL_WORLD_SIZE=2\n", "] GROUP_RANK=0\n",
        "] GROUP_WORLD_SIZE=1\n", "] MASTER_ADDR=127.0.0.1\n", "] TORCHELASTIC_RESTART_COUNT=0\n",
        "] TORCHELASTIC_MAX_RESTARTS=0\n", "] TORCHELASTIC_RUN_ID=sh-", "] DDP_JOB_ID=sh-",
        "] DDP_GENERATION=0\n", "/control\n", "/rank1.error.json\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  auto const port = text.find("MASTER_PORT=");
  ASSERT_NE(port, std::string::npos);
  int const number = std::stoi(text.substr(port + 12));
  EXPECT_GT(number, 1023);
  EXPECT_LT(number, 65536);
}

// D14
TEST(LauncherEnvironment, TheUsersNumberOfThreadsIsKept) {
  LaunchedJob job(shell_ranks(1, "echo $OMP_NUM_THREADS"), {.environment = {"OMP_NUM_THREADS=7"}});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] 7\n");
}

TEST(LauncherEnvironment, RanksInheritNothingOfTheLaunchersOwn) {
  LaunchedJob signals(shell_ranks(2, "grep -E '^Sig(Blk|Ign)' /proc/self/status"));
  EXPECT_EQ(signals.exit_code(), 0);
  EXPECT_EQ(count(signals.out(), "SigBlk:\t0000000000000000"), 2U) << signals.out();
  EXPECT_EQ(count(signals.out(), "SigIgn:\t0000000000000000"), 2U) << signals.out();
  LaunchedJob files(Words{"--cpus", "1", "--log-dir", "logs", "--", "ls", "/proc/self/fd"});
  EXPECT_EQ(files.exit_code(), 0);
  EXPECT_EQ(files.out(), "[0] 0\n[0] 1\n[0] 2\n[0] 3\n") << "3 is the directory that ls reads";
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  LaunchedJob descriptors(shell_ranks(1, "ulimit -Sn"));
  EXPECT_EQ(descriptors.exit_code(), 0);
  EXPECT_EQ(descriptors.out(), "[0] " + std::to_string(limit.rlim_cur) + "\n")
      << "the launcher raised its own";
}

// L14
TEST(LauncherSafety, ArgumentsReachTheProgramUntouched) {
  LaunchedJob job(Words{"--cpus", "1", "--no-log-files", "--", "/usr/bin/printf", "<%s>\\n", "$(touch x)",
                        "a b", "", "`id`;|&*?'\"\\", "--help"});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] <$(touch x)>\n[0] <a b>\n[0] <>\n[0] <`id`;|&*?'\"\\>\n[0] <--help>\n");
  EXPECT_TRUE(std::filesystem::is_empty(job.directory()));
}

// L14
TEST(LauncherSafety, TheControlDirectoryIsTheUsersAlone) {
  LaunchedJob job(shell_ranks(1, "stat -c %a $(dirname $DDP_CONTROL); test -S $DDP_CONTROL && echo socket"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] 700\n[0] socket\n");
}

// L6
TEST(LauncherOutput, GoesToFilesAndToTheTerminal) {
  LaunchedJob job(
      Words{"--cpus", "2", "--log-dir", "a/b", "--", "/bin/sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.sorted_lines(), ElementsAre("[0] out 0", "[1] out 1"));
  EXPECT_EQ(count(job.err(), "[0] err 0\n") + count(job.err(), "[1] err 1\n"), 2U);
  for (std::string const rank : {"0", "1"}) {
    EXPECT_EQ(content(job.directory() / "a/b" / ("rank" + rank + ".out")), "out " + rank + "\n");
    EXPECT_EQ(content(job.directory() / "a/b" / ("rank" + rank + ".err")), "err " + rank + "\n");
  }
}

// L6
TEST(LauncherOutput, TheDefaultDirectoryBearsTheProgramsName) {
  LaunchedJob job(Words{"--cpus", "1", "--", "/bin/sh", "-c", "echo x"});
  EXPECT_EQ(job.exit_code(), 0);
  auto const first = std::filesystem::directory_iterator(job.directory() / "ddp-logs");
  ASSERT_NE(first, std::filesystem::directory_iterator());
  EXPECT_THAT(first->path().filename().string(), ::testing::StartsWith("sh-20"));
  EXPECT_EQ(content(first->path() / "rank0.out"), "x\n");
}

// L6
TEST(LauncherOutput, LinesOfSeveralRanksStayWhole) {
  LaunchedJob job(
      shell_ranks(3, "for i in 1 2 3 4 5 6 7 8; do printf a; sleep 0.01; printf 'b\\n'; done; printf end"));
  EXPECT_EQ(job.exit_code(), 0);
  for (std::string const& line : job.sorted_lines()) {
    std::string const text = line.substr(std::min<std::size_t>(4, line.size()));
    EXPECT_TRUE(text == "ab" || text == "end") << line;
  }
  EXPECT_EQ(job.sorted_lines().size(), 27U);
}

// L6
TEST(LauncherOutput, OptionsChooseWhatTheTerminalShows) {
  std::string const script = "echo out $RANK; echo err $RANK >&2";
  LaunchedJob only(shell_ranks(3, script, {"--only-rank", "1"}));
  EXPECT_EQ(only.exit_code(), 0);
  EXPECT_EQ(only.out() + only.err(), "[1] out 1\n[1] err 1\n");
  LaunchedJob bare(shell_ranks(1, script, {"--no-prefix"}));
  EXPECT_EQ(bare.exit_code(), 0);
  EXPECT_EQ(bare.out() + bare.err(), "out 0\nerr 0\n");
  LaunchedJob tee(shell_ranks(1, script, {"--tee", "err"}));
  EXPECT_EQ(tee.exit_code(), 0);
  EXPECT_EQ(tee.out() + tee.err(), "[0] err 0\n");
  LaunchedJob quiet(Words{"--cpus", "2", "--quiet", "--log-dir", "logs", "--", "/bin/sh", "-c", script});
  EXPECT_EQ(quiet.exit_code(), 0);
  EXPECT_EQ(quiet.out() + quiet.err(), "");
  EXPECT_EQ(content(quiet.directory() / "logs/rank1.err"), "err 1\n");
}

// L6
TEST(LauncherOutput, OnlyRankZeroGetsTheInput) {
  LaunchedJob job(shell_ranks(2, "echo \"got $(cat)\""), {.input = "line"});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.sorted_lines(), ElementsAre("[0] got line", "[1] got "));
}

// L6
TEST(LauncherOutput, WithoutAPlaceForFilesTheJobGoesOnWithAWarning) {
  LaunchedJob job(Words{"--cpus", "1", "--", "/bin/sh", "-c", "echo x"}, {.read_only_directory = true});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] x\n");
  EXPECT_THAT(job.err(), HasSubstr("warning: no log files: cannot make ddp-logs/sh-"));
}

// L6
TEST(LauncherOutput, AnExplicitDirectoryThatCannotBeMadeIsAnError) {
  LaunchedJob job(Words{"--cpus", "1", "--log-dir", "/proc/no", "--", "/bin/sh", "-c", "touch started"});
  EXPECT_EQ(job.exit_code(), 73);
  EXPECT_THAT(job.err(), HasSubstr("--log-dir /proc/no: "));
  EXPECT_TRUE(std::filesystem::is_empty(job.directory()));
}

// L6: bounded memory
TEST(LauncherOutput, AnEndlessLineNeedsLittleMemory) {
  LaunchedJob job(shell_ranks(1, "head -c 100000000 /dev/zero | tr '\\0' x"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(count(job.out(), "x"), 100000000U) << "nothing is lost";
  if (!kSanitized) {
    EXPECT_LT(job.peak_kilobytes(), 32000);
  }
}

// L12
TEST(LauncherDryRun, PrintsThePlanAndStartsNothing) {
  LaunchedJob job(Words{"--cpus", "2", "--dry-run", "--", "/bin/sh", "-c", "touch started"});
  EXPECT_EQ(job.exit_code(), 0);
  for (char const* part : {"rank 0: cpu:0", "rank 1: cpu:0", "  LOCAL_WORLD_SIZE=2",
                           "/bin/sh -c 'touch started'", "log files ddp-logs/sh-"}) {
    EXPECT_THAT(job.out(), HasSubstr(part));
  }
  EXPECT_THAT(job.out(), Not(HasSubstr("rank 2")));
  EXPECT_TRUE(std::filesystem::is_empty(job.directory()));
}

TEST(LauncherDryRun, FindsOutThatTheProgramIsMissing) {
  LaunchedJob job(Words{"--dry-run", "./train"});
  EXPECT_EQ(job.exit_code(), 127);
  EXPECT_EQ(job.out(), "");
}

TEST(LauncherControl, RanksMeetThroughTheControlSocketAndLeave) {
  LaunchedJob job(program_ranks(4, {"*=meet"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
}

// L7: what a rank leaves behind at a normal end is ended too
TEST(LauncherEnd, BackgroundProcessesOfARankAreEnded) {
  LaunchedJob job(shell_ranks(2, "sleep 300 & set -m; sleep 300 & (sleep 300 &) ; echo done"));
  EXPECT_EQ(job.exit_code(std::chrono::seconds(10)), 0) << "ddp-launch must not wait for them";
  EXPECT_THAT(job.sorted_lines(), ElementsAre("[0] done", "[1] done"));
  EXPECT_THAT(job.processes(), IsEmpty());
}

// L13 is bench/launch_time.sh; here only that the launcher sleeps while its ranks work
TEST(LauncherCost, WaitingForRanksTakesNoProcessorTime) {
  LaunchedJob job(shell_ranks(2, "echo up; sleep 1.5; head -c 300 /proc/$PPID/stat"));
  EXPECT_EQ(job.exit_code(), 0);
  auto const line = job.out().find("(ddp-launch)");
  ASSERT_NE(line, std::string::npos) << job.out();
  std::istringstream rest(job.out().substr(line));
  std::string word;
  for (int field = 2; field < 14; ++field) rest >> word;
  long user = -1;
  long system = -1;
  rest >> user >> system;
  EXPECT_GE(user, 0);
  EXPECT_LT(user + system, 20) << "clock ticks of 10 ms in 1.5 s";
}

}  // namespace
}  // namespace ddp::testing
