// Programs started by mpirun, and environments that only look like it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/host_threads.hpp"
#include "support/launcher/job_processes.hpp"
#include "support/launcher/mpirun.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class Mpirun : public ::testing::Test {
 protected:
  [[nodiscard]] ShellOutcome run(std::string const& command) { return run_shell(folder_.path(), command); }
  [[nodiscard]] ShellOutcome run_ranks(int ranks, std::string const& command,
                                       std::string const& options = {}) {
    return run(mpirun(ranks, options) + command);
  }
  TemporaryFolder folder_;
};

TEST_F(Mpirun, RanksMeetAndLeave) {
  auto const outcome = run_ranks(3, LAUNCHED_RANK " '*=meet'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("[ddp]")));  // MPI may have something to say of the machine
}

// MPI is finalised when the World has left, which is after exit()'s handlers.
TEST_F(Mpirun, AWorldThatIsAGlobalObjectIsLeftInOrder) {
  auto const outcome = run_ranks(3, LAUNCHED_RANK " '*=world-in-a-global'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("rank 0 has left"), Not(HasSubstr("died"))));
}

TEST_F(Mpirun, R26HowFewRanksMayGoOnIsRefusedBeforeTheyMeet) {
  auto const outcome = run("export DDP_MIN_RANKS=1; " + mpirun(2, {}) + LAUNCHED_RANK " '*=world'");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("find each other through MPI, which ends all of them when one is lost"));
}

TEST_F(Mpirun, NoticesGoFromRankToRank) {
  auto const outcome = run_ranks(3, LAUNCHED_RANK " '*=notices'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> expected;
  for (int to = 0; to < 3; ++to) {
    for (int from = 0; from < 3; ++from) {
      if (from == to) continue;
      for (int number : {1, 2})
        expected.push_back(ddp::text(to, " hears ", number, " of ", from, " from ", from));
    }
  }
  EXPECT_THAT(lines(outcome.out), ::testing::UnorderedElementsAreArray(expected));
}

// A11: each rank sees one core, and yet there is one for each.
TEST_F(Mpirun, RanksThatAreBoundToACoreEachSpinWhileTheyWait) {
  if (allowed_cpus() < 2) GTEST_SKIP() << "needs two CPUs";
  std::string const ranks = LAUNCHED_RANK " '*=waiting'";
  auto const bound = run("export DDP_LOG=info; " + mpirun_with_its_binding(2, "--bind-to core") + ranks);
  if (bound.err.find("not enough slots") != std::string::npos ||
      bound.err.find("more processes than cpus") != std::string::npos) {
    GTEST_SKIP() << "mpirun finds fewer than two cores here";
  }
  EXPECT_EQ(bound.exit_code, 0) << bound.err;
  EXPECT_THAT(lines(bound.out), UnorderedElementsAre("rank 0 spins", "rank 1 spins"));
  EXPECT_THAT(bound.err, HasSubstr("CPU ranks of one host); every rank has a CPU of its own"));
  auto const free = run(mpirun_with_its_binding(2, "--bind-to none") + ranks);
  EXPECT_THAT(lines(free.out), UnorderedElementsAre("rank 0 spins", "rank 1 spins")) << free.err;
}

TEST_F(Mpirun, RanksThatShareACoreSleepWhileTheyWait) {
  if (allowed_cpus() < 2) GTEST_SKIP() << "needs two CPUs, of which one is for two ranks";
  // Rank 2 has what is left, if that is a CPU.
  auto const outcome =
      run("first=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//'); export DDP_LOG=info; " + mpirun(2) +
          "taskset -c $first " LAUNCHED_RANK " '*=waiting' : -np 1 " LAUNCHED_RANK " '*=waiting'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines(outcome.out), UnorderedElementsAre("rank 0 sleeps", "rank 1 sleeps", "rank 2 spins"));
  EXPECT_THAT(outcome.err, HasSubstr("which give way while they wait: 0, 1"));
}

// L5: the classic mistake, where each of N processes trains a model of its own.
TEST_F(Mpirun, L5ASilentWorldOfSingletonsIsCaught) {
  struct Case {
    char const* environment;
    char const* source;
    char const* remedy;
  };
  Case const cases[] = {
      {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
       "OMPI_COMM_WORLD_LOCAL_SIZE=4",
       "mpirun (Open MPI)", "ldd PROGRAM"},
      {"PMI_RANK=1 PMI_SIZE=4", "a PMI process manager", "ldd PROGRAM"},
      {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 "
       "SLURM_STEP_TASKS_PER_NODE=4",
       "srun", "srun --mpi=pmix"},
      {"PMIX_RANK=1 PMIX_NAMESPACE=none", "a PMIx process manager", "ldd PROGRAM"}};
  for (Case const& one : cases) {
    auto const outcome = run(std::string("env RANK=1 ") + one.environment + " " LAUNCHED_RANK " 1=meet");
    EXPECT_EQ(outcome.exit_code, 95) << one.environment;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(one.source), HasSubstr("is rank 1"), HasSubstr("rank 0 of 1"),
                                   HasSubstr(one.remedy)));
  }
}

// The first rank of such a mistake may be right about its own rank.
TEST_F(Mpirun, L5TheSizeMustBeRightToo) {
  auto const outcome = run("env RANK=0 PMI_RANK=0 PMI_SIZE=4 " LAUNCHED_RANK " 0=meet");
  EXPECT_EQ(outcome.exit_code, 95);
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 of 4, but MPI"));
}

// F1, as far as MPI goes: the job's end is mpirun's, and its exit code tells the signal.
TEST_F(Mpirun, F1AKilledRankEndsTheJob) {
  for (char const* ranks : {"0=meet-or-stay 1=kill", "0=kill 1=meet-or-stay"}) {
    auto const outcome = run_ranks(2, std::string(LAUNCHED_RANK " ") + ranks);
    EXPECT_EQ(outcome.exit_code, 137) << outcome.err;
  }
}

// The same of a program that trains, which has shared memory of this library and of MPI.
TEST_F(Mpirun, F1NothingIsLeftOfAJobWhoseRankIsKilled) {
  auto const temporary = folder_.path() / "tmp";
  std::filesystem::create_directory(temporary);
  std::string const mark = "DDP_TEST_JOB=" + folder_.path().string();
  auto job = std::async(std::launch::async, [&] {
    // An aborted mpirun itself leaves the files of PMIx 5's shared memory behind ("shmem").
    return run("export PMIX_MCA_gds=hash TMPDIR=$PWD/tmp " + mark + "; exec " + mpirun(2) +
               DDP_TRAINING_RANK " none 1");
  });
  Deadline const deadline = Deadline::after(20s);
  while (read_file(folder_.path() / "command.out") != "training\n" && !deadline.expired()) {
    std::this_thread::sleep_for(10ms);
  }
  auto const segments = shared_memory_of(processes_with({mark}));
  EXPECT_THAT(segments, SizeIs(2)) << "MPI's, of which each rank has one";
  auto const rank1 = processes_with({mark, "OMPI_COMM_WORLD_RANK=1"});
  ASSERT_THAT(rank1, SizeIs(1));
  kill(rank1[0].pid, SIGKILL);
  auto const outcome = job.get();
  EXPECT_EQ(outcome.exit_code, 137) << outcome.err;
  EXPECT_TRUE(gone_within(5s, {mark}));
  for (std::string const& file : segments) EXPECT_FALSE(std::filesystem::exists(file)) << file;
  for (auto const& entry : std::filesystem::directory_iterator(temporary)) ADD_FAILURE() << entry.path();
}

// Ranks of one host see the end of a process themselves, before mpirun ends them. Here it lets them live.
TEST_F(Mpirun, F1AKilledRankIsNamedByTheOthersOfItsHost) {
  for (char const* ranks : {"0=meet 1=kill", "0=kill 1=meet"}) {
    auto const outcome = run_ranks(2, std::string(LAUNCHED_RANK " ") + ranks, "--enable-recovery");
    std::string const killed = ranks[2] == 'k' ? "rank 0" : "rank 1";
    EXPECT_THAT(outcome.err,
                HasSubstr("peer_lost: control plane: all_gather(\"meet\"): " + killed + " died"));
  }
}

TEST_F(Mpirun, F4ARankThatLeavesBeforeTheOthersFailsTheJob) {
  auto const outcome = run_ranks(2, LAUNCHED_RANK " 0=meet 1=early-exit");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124);
}

// A deadline inside MPI_Init cannot be an exception: the process reports and ends.
TEST_F(Mpirun, F9ARankThatNeverJoinsEndsTheJobAtTheDeadline) {
  auto const outcome = run_ranks(2, "env DDP_INIT_TIMEOUT=1 DDP_ERROR_FILE=error.json " OWN_MPI " absent");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("MPI_Init did not return within 1 s on rank 0"),
                                 HasSubstr("DDP_INIT_TIMEOUT")));
  auto const error = nlohmann::json::parse(read_file(folder_.path() / "error.json"));
  EXPECT_EQ(error.at("code"), "timeout");
  EXPECT_EQ(error.at("rank"), 0);
}

TEST_F(Mpirun, AnMpiWithoutThreadsIsRefusedWithTheCallThatWorks) {
  auto const outcome = run_ranks(2, OWN_MPI " single");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("unsupported"), HasSubstr("MPI_THREAD_SINGLE"),
                                 HasSubstr("call MPI_Init_thread with MPI_THREAD_MULTIPLE")));
}

// A rank that is refused alone says so and is gone, and so are the others: nobody waits in MPI_Finalize.
TEST_F(Mpirun, WhatIsWrongWithOneRankEndsTheJob) {
  std::string const rank = LAUNCHED_RANK " '*=meet'";
  std::string const preload = "-x LD_PRELOAD=" FAULTY_MPI " -x FAULTY_MPI=";
  auto const threads = run_ranks(2, rank, preload + "threads");
  EXPECT_EQ(threads.exit_code, 95) << threads.err;
  EXPECT_THAT(threads.err, AllOf(HasSubstr("runs with MPI_THREAD_SERIALIZED"), Not(HasSubstr("timeout"))));
  auto const size = run("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " DDP_MPIRUN
                        " --oversubscribe --bind-to none -np 1 " +
                        rank + " : -np 1 env OMPI_COMM_WORLD_SIZE=3 " + rank);
  EXPECT_EQ(size.exit_code, 95) << size.err;
  EXPECT_THAT(size.err, AllOf(HasSubstr("is rank 1 of 3, but MPI"), Not(HasSubstr("timeout"))));
  auto const stops = run_ranks(2, rank, preload + "stops");
  EXPECT_NE(stops.exit_code, 124) << "the rank that waits reports, and ends";
  EXPECT_THAT(stops.err, HasSubstr("rank 0 waited 10 s for every one of 2 MPI ranks"));
}

// As Open MPI 5 does where its fault tolerance is on.
TEST_F(Mpirun, F1WhereMpiSaysThatARankHasFailedTheLossIsStillToldByName) {
  auto const outcome =
      run_ranks(2, DDP_TRAINING_RANK " kill-in-all-reduce 1",
                "-x LD_PRELOAD=" FAULTY_MPI " -x FAULTY_MPI=failed -x DDP_BACKEND=mpi --enable-recovery");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("peer_lost: rank 1 is gone"), Not(HasSubstr("MPI_ERR"))));
}

TEST_F(Mpirun, AFinalisedMpiIsRefused) {
  auto const outcome = run_ranks(2, OWN_MPI " late");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("unsupported"), HasSubstr("finalised already")));
}

// B3
TEST_F(Mpirun, ALauncherInEachTaskIsRefused) {
  auto const outcome = run_ranks(2, DDP_LAUNCH " --cpus 1 --no-log-files -- touch started");
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("mpirun started 2 tasks"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "started"));
  auto const check = run_ranks(2, DDP_LAUNCH " --list-devices", "--tag-output");
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, AllOf(HasSubstr(",0]<stdout>"), HasSubstr(",1]<stdout>")));
  auto const alone = run_ranks(1, DDP_LAUNCH " --cpus 2 --no-log-files -- sh -c 'echo $RANK of $WORLD_SIZE'");
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("[1] 1 of 2"));
}

// F8: without ddp-launch the ranks write what they called last themselves.
TEST_F(Mpirun, F8RanksThatFailWriteTheirFlightRecorders) {
  auto const outcome = run("export DDP_FLIGHT_DIR=.; exec " + mpirun(2) + DDP_TRAINING_RANK " order 1");
  EXPECT_NE(outcome.exit_code, 0);
  int written = 0;
  for (int rank = 0; rank < 2; ++rank) {  // mpirun may end one before it comes to it
    auto const path = folder_.path() / ("rank" + std::to_string(rank) + ".flight.json");
    if (!std::filesystem::exists(path)) continue;
    ++written;
    auto const log = nlohmann::json::parse(read_file(path));
    EXPECT_EQ(log.at("rank"), rank);
    EXPECT_GT(log.at("recorded"), 0);
    EXPECT_EQ(log.at("operations").size(), log.at("recorded"));
    EXPECT_THAT(log.at("operations").dump(), HasSubstr("all_reduce"));
  }
  EXPECT_GE(written, 1) << outcome.err;
}

}  // namespace
}  // namespace ddp::testing
