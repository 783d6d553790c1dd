// Faults of ranks that train under mpirun. It lets the survivors live here, so that they say what they see;
// by itself it kills them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/launcher/mpirun.hpp"

namespace ddp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class MpiFaults : public ::testing::TestWithParam<char const*> {
 protected:
  /// Three ranks; `fault` on rank 1.
  [[nodiscard]] ShellOutcome train(std::string const& fault, std::string const& variables = "",
                                   std::string const& options = "--enable-recovery") {
    return run_shell(folder_.path(), mpirun(3, "--tag-output " + options) + "env DDP_BACKEND=" + GetParam() +
                                         " " + variables + " " DDP_TRAINING_RANK " " + fault + " 1");
  }
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(, MpiFaults, ::testing::Values("shm", "mpi"),
                         [](auto const& backend) { return std::string(backend.param); });

TEST_P(MpiFaults, F1EveryOtherRankNamesTheKilledOne) {
  auto const outcome = train("kill-in-all-reduce");
  for (char const* survivor : {"0", "2"}) {
    EXPECT_THAT(outcome.err,
                ContainsRegex(std::string(",") + survivor +
                              "\\]<stderr>:[^\n]*rank 1 is gone \\(its process, [0-9]+, has ended\\)"));
  }
  EXPECT_THAT(outcome.err, HasSubstr("all_reduce"));
}

TEST_P(MpiFaults, F1WhereverInAStepARankIsKilled) {
  auto const outcome = train("kill-while-training");
  for (char const* survivor : {"0", "2"}) {
    EXPECT_THAT(outcome.err, ContainsRegex(std::string(",") + survivor + "\\]<stderr>:[^\n]*rank 1 is gone"));
  }
}

TEST_P(MpiFaults, F3AStoppedRankIsNamedByTheDeadline) {
  auto const outcome = train("stop-while-training", "DDP_TIMEOUT=1", "");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "the job hangs";
  EXPECT_THAT(outcome.err, ContainsRegex("waited 1 s in operation [0-9]+, [^\n]* for ranks? [^;\n]*1"));
}

TEST_P(MpiFaults, F7DifferentShapesAreTheSameErrorOnEveryRank) {
  auto const outcome = train("shapes");
  for (char const* rank : {"0", "1", "2"}) {
    EXPECT_THAT(outcome.err,
                ContainsRegex(std::string(",") + rank +
                              "\\]<stderr>: ?mismatch: rank 1: parameter 0 \"weight\" is f32.3000."));
  }
}

TEST_P(MpiFaults, ARankThatLeavesInOrderWhileOthersNeedItIsNamedByThem) {
  auto const outcome = train("return");
  for (char const* survivor : {"0", "2"}) {
    EXPECT_THAT(outcome.err,
                ContainsRegex(std::string(",") + survivor +
                              "\\]<stderr>: ?peer_lost: [^\n]*rank 1 is gone \\(left the group\\)"));
  }
}

TEST_P(MpiFaults, AnExceptionOfOneRankEndsTheOthers) {
  auto const outcome = train("exception");
  EXPECT_THAT(outcome.err, ContainsRegex(",1\\]<stderr>: ?failed: the loss is not a number"));
  for (char const* survivor : {"0", "2"}) {
    EXPECT_THAT(outcome.err,
                ContainsRegex(std::string(",") + survivor + "\\]<stderr>: ?aborted: [^\n]*rank 1"));
  }
}

}  // namespace
}  // namespace ddp::testing
