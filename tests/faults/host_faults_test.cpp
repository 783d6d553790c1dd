// Faults of ranks that train on two hosts, under ddp-launch and mpirun, without root: the hosts are none.
// tests/cluster has real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>

#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"
#include "support/launcher/two_hosts.hpp"

namespace ddp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

/// Two ranks over MPI; a fault on rank 1. Each keeps its stderr in a file, since mpirun may drop what ranks
/// say while it ends a job.
class HostFaults : public ::testing::Test {
 protected:
  /// Returns the job's exit code.
  int train(std::string const& fault, Words variables = {}) {
    variables.emplace_back("DDP_BACKEND=mpi");
    Words const command{"/bin/sh", "-c", "exec \"$@\" 2>rank$RANK.err", "sh", DDP_TRAINING_RANK, fault, "1"};
    job_ = std::make_unique<LaunchedJob>(on_two_hosts(command, {"--cpus", "1"}),
                                         two_hosts(std::move(variables)));
    return job_->exit_code();
  }
  [[nodiscard]] std::string said_by(int rank) const {
    return read_file(job_->directory() / text("rank", rank, ".err"));
  }
  [[nodiscard]] std::string const& report() const { return job_->err(); }

 private:
  std::unique_ptr<LaunchedJob> job_;
};

// Its connection closes, and its guard tells of the signal: either may be known first.
TEST_F(HostFaults, F1TheOtherRankNamesTheKilledOne) {
  EXPECT_EQ(train("kill-in-all-reduce"), 128 + 9) << report();
  EXPECT_THAT(report(), HasSubstr("first cause: rank 1"));
  EXPECT_THAT(said_by(0),
              ContainsRegex("peer_lost: rank 1 is gone \\([^\n]*(has ended|signal 9[^\n]*)\\) while "
                            "rank 0 was in operation [0-9]+, all_reduce"));
}

TEST_F(HostFaults, F3TheOtherRankNamesTheStoppedOneAtItsDeadline) {
  EXPECT_NE(train("stop", {"DDP_TIMEOUT=1.5"}), 0);
  EXPECT_THAT(said_by(0),
              ContainsRegex("timeout: rank 0 waited 1.5 s in operation [0-9]+, [^\n]* for rank 1"));
}

TEST_F(HostFaults, F7DifferentShapesAreTheSameErrorOnBoth) {
  EXPECT_NE(train("shapes"), 0);
  for (int rank : {0, 1}) {
    EXPECT_THAT(said_by(rank), HasSubstr("mismatch: rank 1: parameter 0 \"weight\""));
  }
}

TEST_F(HostFaults, F8DifferentOperationsAreTheSameErrorOnBoth) {
  EXPECT_NE(train("order"), 0);
  for (int rank : {0, 1}) {
    EXPECT_THAT(said_by(rank),
                ContainsRegex("mismatch: operation [0-9]+ differs between ranks: rank 0 called "
                              "all_reduce[^\n]*rank 1 called broadcast"));
  }
}

// MPI_Init would wait for it and not say who is missing: ranks meet before.
TEST_F(HostFaults, F9ARankThatNeverComesIsNamed) {
  EXPECT_NE(train("no-init", {"DDP_INIT_TIMEOUT=2"}), 0);
  EXPECT_THAT(said_by(0), HasSubstr("timed out after 2 s: 1 of 2 ranks is missing: 1"));
}

TEST_F(HostFaults, AnExceptionOfOneRankEndsTheOther) {
  EXPECT_NE(train("exception"), 0);
  EXPECT_THAT(said_by(1), HasSubstr("failed: the loss is not a number"));
  EXPECT_THAT(said_by(0), ContainsRegex("aborted: [^\n]*rank 1"));
}

// The rank there dies with it, and the other one says so.
TEST_F(HostFaults, AKilledDaemonOfMpirunIsTheFirstCauseAndNotTheRankThatOnlyLostAnother) {
  LaunchedJob job(on_two_hosts({DDP_TRAINING_RANK, "none", "1"}, {"--cpus", "1"}),
                  two_hosts({"DDP_BACKEND=mpi"}));
  ASSERT_TRUE(job.shows("training"));
  for (JobProcess const& process : job.processes()) {
    bool const there =
        read_file(text("/proc/", process.pid, "/environ")).find("ompi-node-b") != std::string::npos;
    if (there && process.name.starts_with("orted")) kill(process.pid, SIGKILL);
  }
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 1 [^\n]* was killed by its guard, since mpirun's "
                                       "daemon on that host had ended"));
}

TEST_F(HostFaults, AStoppedGuardEndsWithItsJob) {
  LaunchedJob job(on_two_hosts({DDP_TRAINING_RANK, "slow-steps", "1"}, {"--cpus", "1"}), two_hosts());
  ASSERT_TRUE(job.shows("training"));
  int stopped = 0;
  for (JobProcess const& process : job.processes()) {
    if (process.name == "ddp-guard\n" && kill(process.pid, SIGSTOP) == 0) ++stopped;
  }
  EXPECT_GE(stopped, 2);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_TRUE(job.all_gone_within(std::chrono::seconds(5)));
}

TEST_F(HostFaults, ARankThatLeavesInOrderWhileTheOtherNeedsItIsNamed) {
  EXPECT_NE(train("return"), 0);
  EXPECT_THAT(said_by(0), ContainsRegex("peer_lost: [^\n]*rank 1 is gone \\(left the group\\)"));
}

}  // namespace
}  // namespace ddp::testing
