// The example programs, started by mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/mpirun.hpp"

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

}  // namespace
}  // namespace ddp::testing
