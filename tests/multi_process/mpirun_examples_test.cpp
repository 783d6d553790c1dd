// The example programs, started by mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/launcher/mpirun.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

class MpirunExamples : public ::testing::Test {
 protected:
  [[nodiscard]] ShellOutcome run(std::string const& command) { return run_shell(folder_.path(), command); }
  TemporaryFolder folder_;
};

/// "test accuracy 0.8931" of train_mlp's last line.
std::string accuracy(std::string const& output) {
  std::size_t const begin = output.rfind("test accuracy ");
  return begin == std::string::npos ? output : output.substr(begin, output.find(',', begin) - begin);
}

TEST_F(MpirunExamples, HelloAllReduceCountsItsRanks) {
  auto const outcome = run(mpirun(3) + HELLO_ALL_REDUCE);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (char const* rank : {"rank 0 of 3", "rank 1 of 3", "rank 2 of 3"})
    EXPECT_THAT(outcome.out, HasSubstr(rank));
}

// Whoever starts the ranks, and whichever backend carries their sums: the digits are the same.
TEST_F(MpirunExamples, TrainMlpGivesTheSameDigits) {
  std::string const program = TRAIN_MLP " --synthetic --limit 2000 --hidden 32 --batch 100 --epochs 2";
  auto const launched = run(DDP_LAUNCH " --cpus 2 --no-prefix -- " + program);
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  ASSERT_THAT(accuracy(launched.out), ::testing::MatchesRegex("test accuracy 0[.][0-9]+"));
  for (char const* backend : {"shm", "mpi"}) {
    auto const outcome = run(std::string("DDP_BACKEND=") + backend + " " + mpirun(2) + program);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(accuracy(outcome.out), accuracy(launched.out)) << backend;
  }
}

/// "got 18 messages" of what rank 0 says of the control plane.
std::string requests(std::string const& log) {
  std::size_t const begin = log.find("messages (", log.find("the control plane of"));
  std::size_t const number = log.rfind("got ", begin);
  return begin == std::string::npos ? log : log.substr(number, begin - number);
}

// docs/cluster.md: the control plane's cost at start is known, and steps add nothing to it.
TEST_F(MpirunExamples, StepsSendNothingOverTheControlPlane) {
  std::string const program = TRAIN_MLP " --synthetic --limit 2000 --hidden 32 --batch 100 --epochs ";
  auto const one = run("DDP_LOG=info " + mpirun(2) + program + "1");
  auto const four = run("DDP_LOG=info " + mpirun(2) + program + "4");
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(requests(one.err), ::testing::MatchesRegex("got [0-9]+ "));
  EXPECT_EQ(requests(four.err), requests(one.err));
}

}  // namespace
}  // namespace ddp::testing
