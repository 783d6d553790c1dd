// train_mlp whose ranks find each other by MASTER_ADDR, and go on when one is lost (R26): no launcher, no
// MPI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "bootstrap/server/tcp.hpp"
#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class SurvivingByAddress : public ::testing::Test {
 protected:
  /// Two seconds of training on four ranks with `variables`. After the first epoch the shell does `then`, in
  /// which $p0 to $p3 are their processes; then it prints their exit codes in a line.
  [[nodiscard]] std::string exit_codes(std::string const& variables, std::string const& then) const {
    std::string command;
    int const port = tcp::port_of(tcp::listen_here("localhost", 0));
    for (int rank = 0; rank < 4; ++rank) {
      command += text("RANK=", rank, " WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=", port,
                      " CUDA_VISIBLE_DEVICES= ", variables, " ", TRAIN_MLP,
                      " --synthetic --limit 16000 --hidden 64 --batch 64 --epochs 12 --survive >out", rank,
                      " 2>err", rank, " & p", rank, "=$!\n");
    }
    command += "until_shown() { until grep -qs \"$1\" out* || ! kill -0 $p0; do sleep 0.01; done; }\n";
    command += "until_ended() { while grep -qs 'State:.[^Z]' /proc/$1/status; do sleep 0.01; done; }\n";
    command += text("until_shown 'epoch  1/12'\n", then,
                    "\ncodes=; for p in $p0 $p1 $p2 $p3; do wait $p; codes=\"$codes $?\"; done; echo $codes");
    ShellOutcome const outcome = run_shell(folder_.path(), command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  [[nodiscard]] std::string of_rank(char const* what, int rank) const {
    return read_file(folder_.path() / text(what, rank));
  }
  [[nodiscard]] std::string all(char const* what) const {
    std::string words;
    for (int rank = 0; rank < 4; ++rank) words += of_rank(what, rank);
    return words;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(SurvivingByAddress, R26TheOthersGoOnWithoutARankOtherThanTheFirst) {
  EXPECT_EQ(exit_codes("DDP_MIN_RANKS=2", "kill -9 $p2; until_shown 'going on with 3'; kill -9 $p1"),
            "0 137 137 0\n");
  EXPECT_THAT(of_rank("out", 0), AllOf(HasSubstr("going on with 3 ranks"), HasSubstr("going on with 2 ranks"),
                                       ContainsRegex("final: test accuracy [0-9.]+, 2 ranks")));
  EXPECT_EQ(all("err"), "");
}

TEST_F(SurvivingByAddress, R26TheLossOfTheRankThatServesEndsTheJobWithOneErrorOnEveryRank) {
  EXPECT_EQ(exit_codes("DDP_MIN_RANKS=1", "kill -9 $p0"), "137 134 134 134\n");
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_THAT(
        of_rank("err", rank),
        ContainsRegex(text("^\\[ddp\\] error: rank ", rank,
                           " ends .* rank 0 died: its process, [0-9]+, "
                           "has ended, and the control plane of the job with it: no rank can go on\n")));
  }
}

TEST_F(SurvivingByAddress, R26ARankThatServesAndIsStoppedEndsTheJobByTheDeadline) {
  EXPECT_EQ(exit_codes("DDP_MIN_RANKS=1 DDP_TIMEOUT=1",
                       "kill -STOP $p0; for p in $p1 $p2 $p3; do until_ended $p; done; kill -9 $p0"),
            "137 134 134 134\n");
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_THAT(of_rank("err", rank), ContainsRegex("rank 0 \\(process [0-9]+\\) is stopped by a signal"));
  }
}

TEST_F(SurvivingByAddress, R26AStoppedRankIsLeftBehindAndIsRefusedWhenItGoesOn) {
  EXPECT_EQ(exit_codes("DDP_MIN_RANKS=1 DDP_TIMEOUT=1",
                       "kill -STOP $p1; until_shown 'going on with 3'; kill -CONT $p1"),
            "0 134 0 0\n");
  EXPECT_THAT(of_rank("out", 0), ContainsRegex("final: test accuracy [0-9.]+, 3 ranks"));
  EXPECT_THAT(of_rank("err", 0),
              ContainsRegex("rank 1 did not come to the others' World::rebuild\\(\\) in time: they go on "
                            "without it. Its process, [0-9]+ on [^ ]+, is not killed"));
  EXPECT_THAT(of_rank("err", 1), HasSubstr("this rank was declared lost: "));
}

TEST_F(SurvivingByAddress, R26TheServerDoesNotWaitForAStoppedRankAtItsEnd) {
  EXPECT_EQ(exit_codes("DDP_MIN_RANKS=1 DDP_TIMEOUT=1", "kill -STOP $p1; until_ended $p0; kill -CONT $p1"),
            "0 134 0 0\n");
  EXPECT_THAT(of_rank("err", 1), HasSubstr("rank 0 died: its process"));
}

TEST_F(SurvivingByAddress, R26WithFewerThanTheLeastTheJobEnds) {
  EXPECT_EQ(exit_codes("DDP_MIN_RANKS=4", "kill -9 $p3"), "134 134 134 137\n");
  std::string const cause = "3 of 4 ranks are left, and --min-ranks (DDP_MIN_RANKS) is 4";
  EXPECT_THAT(of_rank("err", 0), HasSubstr(cause));
  for (int rank = 1; rank < 3; ++rank) {  // rank 0 may have ended already
    EXPECT_THAT(of_rank("err", rank),
                AnyOf(HasSubstr(cause), HasSubstr("no rank can go on; before that, rank 3 "
                                                  "died: its process")));
  }
}

TEST_F(SurvivingByAddress, R26WithoutTheVariableALossEndsTheJobAndTheErrorNamesIt) {
  EXPECT_EQ(exit_codes("", "kill -9 $p3"), "134 134 134 137\n");
  EXPECT_THAT(of_rank("err", 0),
              AllOf(HasSubstr("rank 3"), HasSubstr("with DDP_MIN_RANKS where another starter")));
}

}  // namespace
}  // namespace ddp::testing
