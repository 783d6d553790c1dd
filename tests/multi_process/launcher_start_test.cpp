// What ddp-launch takes over from whoever starts it: signals, a terminal, another manager of jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"
#include "support/launcher/terminal.hpp"
#include "support/sanitized.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

TEST(LauncherVariables, L15ThoseThatAreNamedAreSetForEveryRankOfThisHostToo) {
  LaunchedJob job({"--cpus", "2", "--no-log-files", "--no-prefix", "-x", "SET=a=b", "-x", "NOT_THERE", "--",
                   "/bin/sh", "-c", "echo \"$SET\""});
  EXPECT_EQ(job.exit_code(10s), 0) << job.err();
  EXPECT_EQ(job.out(), "a=b\na=b\n");
  EXPECT_THAT(job.err(), HasSubstr("-x NOT_THERE: there is no such variable here"));
}

TEST(LauncherWithoutProc, SaysWhatItNeeds) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs /proc itself";
  TemporaryFolder const folder;
  auto const inside = [&](std::string const& words) {
    return run_shell(folder.path(), "exec unshare -rm sh -c 'mount -t tmpfs none /proc && " + words + "'");
  };
  if (inside("true").exit_code != 0) GTEST_SKIP() << "unshare -rm, or mount in it, is not allowed here";
  auto const outcome = inside(DDP_LAUNCH " --cpus 1 --no-log-files -- true");
  EXPECT_EQ(outcome.exit_code, 69);
  EXPECT_THAT(outcome.err,
              HasSubstr("reading /proc/self/exe: No such file or directory; ddp-launch needs /proc"));
}

// The kernel allows any bytes.
TEST(NamesWithBlanks, RanksMeetOnAHostThatHasOne) {
  FileDescriptor const before(open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC));
  if (unshare(CLONE_NEWUTS) != 0) GTEST_SKIP() << "needs the right to name a host";
  ASSERT_EQ(sethostname("My Mac/2\n", 9), 0);
  LaunchedJob job(program_ranks(2, {"*=world"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("rank 1 of 2 on cpu:0, shm"));
  ASSERT_EQ(setns(before.get(), CLONE_NEWUTS), 0);
}

TEST(NamesWithBlanks, ABackendOfSuchANameIsNotThere) {
  LaunchedJob job(program_ranks(2, {"*=world"}), {.environment = {"DDP_BACKEND=a b"}});
  EXPECT_EQ(job.exit_code(), 95);
  EXPECT_THAT(job.err(), HasSubstr("\"a b\""));
  EXPECT_THAT(job.err(), Not(HasSubstr("same version")));
}

// B1
TEST(SignalsOfASupervisor, WithChildrenIgnoredTheJobEndsAsEver) {
  LaunchedJob well(shell_ranks(2, "true"), {.ignored_signals = {SIGCHLD}});
  EXPECT_EQ(well.exit_code(10s), 0);
  LaunchedJob badly(shell_ranks(2, "exit $((RANK * 3))"), {.ignored_signals = {SIGCHLD}});
  EXPECT_EQ(badly.exit_code(10s), 3);
  LaunchedJob check(Words{"--check", "--cpus", "1"}, {.ignored_signals = {SIGCHLD}});
  check.exit_code(20s);
  EXPECT_THAT(check.out(), Not(HasSubstr("No child processes")));
}

// B1
TEST(SignalsOfASupervisor, RanksStartWithNoneIgnoredOrBlocked) {
  LaunchedJob job(shell_ranks(1, "grep -E '^Sig(Blk|Ign)' /proc/self/status"),
                  {.ignored_signals = {SIGCHLD, SIGPIPE, SIGALRM}, .blocked_signals = {SIGCHLD, SIGTERM}});
  EXPECT_EQ(job.exit_code(10s), 0);
  EXPECT_EQ(job.out(), "[0] SigBlk:\t0000000000000000\n[0] SigIgn:\t0000000000000000\n");
}

// B1: nohup, and what shells do to jobs in the background
TEST(SignalsOfASupervisor, WhatWouldEndTheJobStaysIgnored) {
  LaunchedJob job(shell_ranks(1, "grep SigIgn /proc/self/status"), {.ignored_signals = {SIGHUP, SIGINT}});
  EXPECT_EQ(job.exit_code(10s), 0);
  EXPECT_EQ(job.out(), "[0] SigIgn:\t0000000000000003\n");
}

TEST(SignalsOfASupervisor, ABlockedSignalEndsTheJobAllTheSame) {
  LaunchedJob job(shell_ranks(2, "echo up; exec sleep 60"), {.blocked_signals = {SIGTERM, SIGCHLD}});
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(10s), 143);
}

class JobOnATerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    terminal_ = open_terminal();
    if (!terminal_) GTEST_SKIP() << "no pseudo-terminal here: " << std::strerror(errno);
  }
  std::optional<Terminal> terminal_;
};

// B9
TEST_F(JobOnATerminal, InTheForegroundRankZeroReadsWhatIsTyped) {
  LaunchedJob job(shell_ranks(2, "read -r line; echo got $line"), {.terminal = terminal_->follower.get()});
  terminal_->type("hello\n");
  EXPECT_EQ(job.exit_code(10s), 0) << "the other rank has no input";
  EXPECT_THAT(job.out(), HasSubstr("[0] got hello\n"));
  EXPECT_THAT(job.out(), HasSubstr("[1] got\n"));
}

// B9
TEST_F(JobOnATerminal, InTheBackgroundKeystrokesAreLeftToTheShell) {
  terminal_->type("ls\n");
  LaunchedJob job(shell_ranks(1, "read -r line; echo got $line; readlink /proc/self/fd/0"),
                  {.terminal = terminal_->follower.get(), .foreground = false});
  EXPECT_EQ(job.exit_code(10s), 0);
  EXPECT_EQ(job.out(), "[0] got\n[0] /dev/null\n");
  EXPECT_TRUE(terminal_->has_unread_line());
}

struct Manager {
  char const* name;
  Words environment;
  Words says;
};

class OneOfSeveralTasks : public ::testing::TestWithParam<Manager> {};

// B3
TEST_P(OneOfSeveralTasks, IsRefusedWithTheCommandsThatWereMeant) {
  LaunchedJob job(Words{"--cpus", "2", "--no-log-files", "--", "/bin/touch", "started"},
                  {.environment = GetParam().environment});
  EXPECT_EQ(job.exit_code(10s), 64);
  for (std::string const& part : GetParam().says) EXPECT_THAT(job.err(), HasSubstr(part));
  EXPECT_FALSE(std::filesystem::exists(job.directory() / "started"));
}

// B3
TEST_P(OneOfSeveralTasks, MayLookAtTheMachine) {
  for (char const* option : {"--check", "--list-devices", "--help", "--version"}) {
    LaunchedJob job(Words{option}, {.environment = GetParam().environment});
    job.exit_code();
    EXPECT_THAT(job.err(), Not(HasSubstr("tasks"))) << option;
    EXPECT_THAT(job.out(), Not("")) << option;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , OneOfSeveralTasks,
    ::testing::Values(
        Manager{"Mpirun",
                {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                 "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
                {"mpirun started 2 tasks, of which this is number 1", "-np 2 /bin/touch started\n",
                 "ddp-launch --hostfile FILE -- /bin/touch started\n", "env -u OMPI_COMM_WORLD_SIZE"}},
        Manager{"Mpiexec",
                {"PMI_RANK=0", "PMI_SIZE=4"},
                {"mpiexec started 4 tasks", "mpiexec -n 4 /bin/touch started\n", "env -u PMI_SIZE"}},
        Manager{"Srun",
                {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=2",
                 "SLURM_STEP_NUM_TASKS=2"},
                {"srun started 2 tasks", "srun --mpi=pmix -n 2 /bin/touch started\n",
                 "ddp-launch --nnodes N ", "env -u SLURM_STEP_NUM_TASKS"}}),
    [](auto const& manager) { return std::string(manager.param.name); });

// B3: sbatch's script and salloc's shell have these too, but one task runs there; so has a step of one task.
TEST(OnlyTask, OfAnAllocationStartsTheJob) {
  Words const allocation{"SLURM_JOB_ID=7", "SLURM_NTASKS=16", "SLURM_PROCID=0", "SLURM_NNODES=2"};
  Words batch = allocation;
  batch.insert(batch.end(), {"SLURM_STEP_ID=4294967291", "SLURM_STEP_NUM_TASKS=16"});
  Words const step{"SLURM_JOB_ID=7", "SLURM_STEP_ID=3", "SLURM_PROCID=0", "SLURM_NTASKS=1",
                   "SLURM_STEP_NUM_TASKS=1"};
  Words const mpi{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                  "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
  for (Words const& environment : {allocation, batch, step, mpi}) {
    LaunchedJob job(shell_ranks(2, "true"), {.environment = environment});
    EXPECT_EQ(job.exit_code(10s), 0) << job.err();
  }
}

}  // namespace
}  // namespace ddp::testing
