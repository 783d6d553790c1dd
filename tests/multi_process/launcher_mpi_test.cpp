// ddp-launch --engine mpi as a user runs it, on this host and on two that are none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "support/launcher/shell.hpp"
#include "support/launcher/two_hosts.hpp"
#include "support/sanitized.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using Words = std::vector<std::string>;

/// As /proc/net/tcp and tcp6 write 127.0.0.1 and ::1, on a little-endian machine.
Words const kLoopbackAddresses{"0100007F", "00000000000000000000000001000000"};

// Open MPI warns that setpgid() failed where a rank runs before mpirun has put it into a group of its own, as
// it may on a busy machine.
std::string without_race_of_groups(std::string const& words) {
  std::istringstream in(words);
  std::string rest;
  for (std::string line; std::getline(in, line);) {
    bool const is_it =
        line.find("setpgid(") != std::string::npos && line.find("failed in parent") != std::string::npos;
    if (!is_it) rest += line + '\n';
  }
  return rest;
}

TEST(LauncherMpi, L3RanksOfTwoHostsMeet) {
  for (char const* backend : {"shm", "mpi"}) {  // what one host has, and what several have
    LaunchedJob job(on_two_hosts({WORLD_TEST}, {"--cpus", "1"}),
                    two_hosts({std::string("DDP_BACKEND=") + backend}));
    EXPECT_EQ(job.exit_code(), 0) << job.out() << job.err();
    EXPECT_THAT(job.out(), ContainsRegex("\\[1\\] [^\n]*PASSED"));
  }
}

TEST(LauncherMpi, L4EachRankHasItsVariables) {
  LaunchedJob job(on_two_hosts({"/bin/sh", "-c",
                                "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                                "$GROUP_RANK $MASTER_ADDR $DDP_GENERATION ${DDP_CONTROL-none}"}),
                  two_hosts());
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.sorted_lines(), ElementsAre("[0] 0/2 0/1 0 node-a 0 none", "[1] 1/2 0/1 1 node-a 0 none"));
}

// Open MPI 5 puts a space behind its tags. The stand-in's rank writes one of its own.
TEST(LauncherMpi, L6ARanksLinesBeginAsItWroteThem) {
  for (auto const& [version, tag] : {std::pair{"4.1.4", "<stdout>:"}, {"5.0.11", "<stdout>: "}}) {
    TemporaryFolder const folder;
    auto const mpirun = folder.path() / "mpirun";
    std::ofstream(mpirun) << "#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'mpirun (Open MPI) " << version
                          << "'\necho '[1,0]" << tag << " hello'\n";
    std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
    LaunchedJob job({"--engine", "mpi", "--cpus", "1", "--no-log-files", "--", "/bin/true"},
                    {.environment = {"PATH=" + folder.path().string() + ":/usr/bin:/bin"}});
    EXPECT_EQ(job.exit_code(), 70) << "no rank was started";
    EXPECT_EQ(job.out(), "[0]  hello\n") << version;
  }
}

TEST(LauncherMpi, L14ArgumentsArriveAsTheyAre) {
  LaunchedJob job(on_two_hosts({"/bin/sh", "-c", "for word; do echo \"<$word>\"; done", "sh", ":", "a  b",
                                "$HOME", "'", "", "--np"},
                               {"--only-rank", "1", "--no-prefix"}),
                  two_hosts());
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "<:>\n<a  b>\n<$HOME>\n<'>\n<>\n<--np>\n");
}

TEST(LauncherMpi, L15VariablesReachOtherHosts) {
  LaunchedJob job(on_two_hosts({"/bin/sh", "-c", "echo $NCCL_X $CUDA_X $OMP_X $DDP_X"}, {"--no-prefix"}),
                  two_hosts({"NCCL_X=1", "CUDA_X=2", "OMP_X=3", "DDP_X=4"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "1 2 3 4\n1 2 3 4\n");
}

TEST(LauncherMpi, L15VariablesThatAreNamedReachOtherHostsToo) {
  LaunchedJob job(on_two_hosts({"/bin/sh", "-c", "echo \"$SET|$PASSED\""},
                               {"--no-prefix", "-x", "SET=a b;c", "-x", "PASSED"}),
                  two_hosts({"PASSED=d", "SET=no"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "a b;c|d\na b;c|d\n");
}

TEST(LauncherMpi, CpuRanksSeeNoGpu) {
  LaunchedJob job({"--engine", "mpi", "--cpus", "3", "--no-log-files", "--no-prefix", "--", "/bin/sh", "-c",
                   "echo \"<$CUDA_VISIBLE_DEVICES>\""},
                  {.environment = {"CUDA_VISIBLE_DEVICES=0"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "<>\n<>\n<>\n");
}

TEST(LauncherMpi, L8L9TheFirstCauseAndItsExitCodeAreTheJobs) {
  LaunchedJob job(on_two_hosts({LAUNCHED_RANK, "0=meet", "1=mismatch"}), two_hosts());
  EXPECT_EQ(job.exit_code(), 5);
  EXPECT_THAT(job.err(),
              ContainsRegex("first cause: rank 1 \\(pid [0-9]+, cpu:0\\) on [^\n]* exited with code 5"));
  EXPECT_THAT(job.err(), HasSubstr("its error: mismatch: shapes differ:"));
  EXPECT_THAT(job.err(), HasSubstr("exit code 5"));
}

TEST(LauncherMpi, L9ASignalIsInTheExitCode) {
  LaunchedJob job(on_two_hosts({LAUNCHED_RANK, "0=meet", "1=kill"}), two_hosts());
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 1 [^\n]* was killed by signal 9 \\(SIGKILL\\)"));
  EXPECT_THAT(without_race_of_groups(job.err()), Not(HasSubstr("mpirun")));
}

TEST(LauncherMpi, L6L8EachRankHasItsFilesAndTheFailedOneItsLastLinesInTheReport) {
  TemporaryFolder folder;
  LaunchedJob job({"--host", "node-a:1,node-b:1", "--log-dir", folder.path().string(), "--", "/bin/sh", "-c",
                   "echo out of $RANK; echo err of $RANK >&2; [ $RANK = 0 ] && exec sleep 60; exit 7"},
                  two_hosts());
  EXPECT_EQ(job.exit_code(), 7);
  EXPECT_EQ(read_file(folder.path() / "rank0.out"), "out of 0\n");
  EXPECT_EQ(read_file(folder.path() / "rank1.out"), "out of 1\n");
  EXPECT_EQ(read_file(folder.path() / "rank1.err"), "err of 1\n");
  EXPECT_THAT(without_race_of_groups(job.err()), Not(HasSubstr("mpirun: ")));
  EXPECT_THAT(job.err(), HasSubstr("| err of 1\n"));
  EXPECT_THAT(job.err(), Not(HasSubstr("| err of 0\n")));
}

TEST(LauncherMpi, L6PartialLongAndOverwrittenLinesStayTheirRanks) {
  TemporaryFolder folder;
  std::string const script =
      "printf \"a$RANK\"; sleep 0.3; printf \"b$RANK\\n\"; printf \"1/2\\r2/2\\n\"; "
      "head -c 200000 /dev/zero | tr '\\0' $RANK; echo";
  LaunchedJob job({"--host", "node-a:1,node-b:1", "--log-dir", folder.path().string(), "--quiet", "--",
                   "/bin/sh", "-c", script},
                  two_hosts());
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  for (std::string const rank : {"0", "1"}) {
    std::string wrote = "a" + rank + "b" + rank + "\n1/2\r2/2\n" + std::string(200000, rank[0]) + "\n";
    EXPECT_TRUE(read_file(folder.path() / ("rank" + rank + ".out")) == wrote) << "rank " << rank;
  }
  EXPECT_EQ(read_file(folder.path() / "mpirun.out"), "");
  // Another job in the same place leaves nothing of the one before.
  LaunchedJob silent(
      {"--engine", "mpi", "--cpus", "1", "--log-dir", folder.path().string(), "--", "/bin/true"});
  EXPECT_EQ(silent.exit_code(), 0) << silent.err();
  EXPECT_EQ(read_file(folder.path() / "rank0.out"), "");
}

TEST(LauncherMpi, F8TheFirstDifferenceOfTheRanksIsNamed) {
  TemporaryFolder folder;
  LaunchedJob job({"--engine", "mpi", "--cpus", "3", "--log-dir", folder.path().string(), "--",
                   DDP_TRAINING_RANK, "order", "2"});
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_THAT(job.err(), ContainsRegex("the ranks' collectives first differ at [^\n]*rank 2"));
  EXPECT_THAT(
      job.err(),
      ContainsRegex(
          "first cause: rank [0-2] [^\n]*\n[^\n]* last progress since the start: step [0-9]+\n[^\n]* last "
          "collective: [a-z_]+ "));
  for (int rank = 0; rank < 3; ++rank) {
    auto const log = folder.path() / ("rank" + std::to_string(rank) + ".flight.json");
    EXPECT_THAT(read_file(log), HasSubstr("\"all_reduce\"")) << log;
  }
}

TEST(LauncherMpi, F10ALateRankIsNamed) {
  LaunchedJob job({"--engine", "mpi", "--cpus", "3", "--no-log-files", "--", DDP_TRAINING_RANK, "slow", "1"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("warning: rank 1 is late"));
}

TEST(LauncherMpi, R20TheSlowestRankOfARunningJobIsShown) {
  LaunchedJob job(
      {"--engine", "mpi", "--cpus", "3", "--no-log-files", "--", DDP_TRAINING_RANK, "slow-steps", "1"},
      {.environment = {"DDP_STATISTICS=statistics"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("step [0-9]+, [0-9.]+ ms a step; the slowest is rank 1, for which others wait "
                            "[0-9.]+ ms a step"));
}

// B6: mpirun has no setting for its own; see loopback_bind.cpp
TEST(LauncherMpi, NothingListensOnAnotherInterfaceThanLoopbackWhereAllHostsAreThisOne) {
  if (kSanitized) {
    GTEST_SKIP() << "loopback_bind is not built for sanitizers";
  }
  LaunchedJob job({"--engine", "mpi", "--cpus", "2", "--no-log-files", "--", LAUNCHED_RANK, "*=stay"});
  ASSERT_TRUE(job.shows("[0] joined"));
  ASSERT_TRUE(job.shows("[1] joined"));
  auto const listening = listening_addresses(job.processes());
  EXPECT_FALSE(listening.empty()) << "mpirun listens for its ranks, or nothing was seen";
  for (std::string const& address : listening) EXPECT_THAT(kLoopbackAddresses, Contains(address));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 143);
}

TEST(LauncherMpi, RanksHaveTheUsersLibrariesPreloadedOnly) {
  if (kSanitized) {
    GTEST_SKIP() << "loopback_bind is not built for sanitizers";
  }
  std::string const script = "echo \"<$LD_PRELOAD>\"";
  LaunchedJob none({"--engine", "mpi", "--cpus", "1", "--no-log-files", "--", "/bin/sh", "-c", script});
  EXPECT_EQ(none.exit_code(), 0) << none.err();
  EXPECT_EQ(none.out(), "[0] <>\n");
  LaunchedJob own({"--engine", "mpi", "--cpus", "1", "--no-log-files", "--", "/bin/sh", "-c", script},
                  {.environment = {"LD_PRELOAD=libc.so.6"}});
  EXPECT_EQ(own.exit_code(), 0) << own.err();
  EXPECT_EQ(own.out(), "[0] <libc.so.6>\n");
}

// B8
TEST(LauncherMpi, AStoppedRankIsNamedByTheDeadline) {
  for (char const* backend : {"shm", "mpi"}) {
    LaunchedJob job(
        {"--engine", "mpi", "--cpus", "3", "--no-log-files", "--", DDP_TRAINING_RANK, "stop", "1"},
        {.environment = {"DDP_TIMEOUT=1.5", std::string("DDP_BACKEND=") + backend}});
    EXPECT_NE(job.exit_code(), 0);
    EXPECT_THAT(job.err(), ContainsRegex("rank [02] [^\n]*: timeout: [^\n]*for rank 1[^\n]*; rank 1 "
                                         "\\(process [0-9]+\\) is stopped by a signal"))
        << backend;
    EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 1 [^\n]* was stopped by a signal")) << backend;
  }
}

// B7: mpirun goes on, and stops the ranks.
TEST(LauncherMpi, CtrlZStopsTheRanksTooAndNoDeadlineRuns) {
  for (char const* backend : {"shm", "mpi"}) {
    LaunchedJob job(
        {"--engine", "mpi", "--cpus", "3", "--no-log-files", "--", DDP_TRAINING_RANK, "late", "1"},
        {.environment = {"DDP_TIMEOUT=2", std::string("DDP_BACKEND=") + backend}});
    ASSERT_TRUE(job.shows("comes later"));
    job.send(SIGTSTP);
    ASSERT_TRUE(job.stops());
    auto const stopped_ranks = [&] {
      auto const all = job.processes();
      return std::ranges::count_if(
          all, [](JobProcess const& each) { return each.name.starts_with("training") && each.state == 'T'; });
    };
    for (auto const until = std::chrono::steady_clock::now() + 5s;
         stopped_ranks() != 3 && std::chrono::steady_clock::now() < until;) {
      std::this_thread::sleep_for(5ms);
    }
    EXPECT_EQ(stopped_ranks(), 3);
    std::this_thread::sleep_for(3s);
    job.send(SIGCONT);
    EXPECT_EQ(job.exit_code(), 0) << backend << job.err();
  }
}

TEST(LauncherMpi, CtrlZDoesNotStopAJobThatNoShellCanContinue) {
  LaunchedJob job({"--engine", "mpi", "--cpus", "3", "--no-log-files", "--", DDP_TRAINING_RANK, "late", "1"},
                  {.environment = {"DDP_TIMEOUT=5"}, .shell = false});
  ASSERT_TRUE(job.shows("comes later"));
  job.send(SIGTSTP);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

TEST(LauncherMpi, L10TheGroupIsStartedAgain) {
  LaunchedJob job(
      on_two_hosts(
          {"/bin/sh", "-c",
           "echo $RANK in $DDP_GENERATION of $TORCHELASTIC_MAX_RESTARTS; [ $DDP_GENERATION$RANK != 01 ]"},
          {"--max-restarts", "1"}),
      two_hosts());
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
  EXPECT_THAT(job.sorted_lines(), IsSupersetOf({"[1] 1 in 0 of 1", "[0] 0 in 1 of 1", "[1] 1 in 1 of 1"}));
}

TEST(LauncherMpi, L2GpusThatAHostDoesNotHaveAreNamedThere) {
  LaunchedJob job(on_two_hosts({"/bin/true"}, {"--gpus", "4097"}), two_hosts({"CUDA_VISIBLE_DEVICES="}));
  EXPECT_EQ(job.exit_code(), 69);
  EXPECT_THAT(job.err(), HasSubstr("4097"));
}

TEST(LauncherMpi, L9AProgramThatIsNotThereIsSaidOnce) {
  LaunchedJob job(on_two_hosts({"./not-there"}), two_hosts());
  EXPECT_EQ(job.exit_code(), 127);
  EXPECT_THAT(job.err(), HasSubstr("./not-there"));
  EXPECT_THAT(without_race_of_groups(job.err()), Not(HasSubstr("mpirun")));
}

TEST(LauncherMpi, F15ABadHostfileEndsBeforeAnythingStarts) {
  TemporaryFolder folder;
  auto const file = folder.path() / "hosts";
  std::ofstream(file) << "# two hosts\n\nnode-a slots=1\nnode-b slots=abc\n";
  LaunchedJob bad({"--hostfile", file.string(), "--", "/bin/true"}, two_hosts());
  EXPECT_EQ(bad.exit_code(), 64);
  EXPECT_THAT(bad.err(), HasSubstr(file.string() + ":4: slots expects"));
  LaunchedJob missing({"--hostfile", "nowhere", "--", "/bin/true"}, two_hosts());
  EXPECT_EQ(missing.exit_code(), 64);
  EXPECT_THAT(missing.err(), HasSubstr("nowhere: No such file"));
  std::ofstream(file) << "# two hosts\n\nnode-a slots=1  # first\nnode-b\n";
  LaunchedJob good(
      {"--hostfile", file.string(), "--no-log-files", "--", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE"},
      two_hosts());
  EXPECT_EQ(good.exit_code(), 0) << good.err();
  EXPECT_THAT(good.sorted_lines(), ElementsAre("[0] 0 of 2", "[1] 1 of 2"));
}

TEST(LauncherMpi, L12ADryRunShowsTheCommand) {
  LaunchedJob job({"--host", "node-a:2", "--dry-run", "--", "/bin/true"});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.out(), HasSubstr("engine    mpi: 2 ranks"));
  EXPECT_THAT(job.out(), ContainsRegex("command   [^\n]*mpirun --bind-to none"));
}

}  // namespace
}  // namespace ddp::testing
