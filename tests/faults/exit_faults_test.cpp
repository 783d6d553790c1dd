// exit() in the middle of a step, in a program whose World is a global object: its destructor runs.
#include <gmock/gmock.h>

#include "support/launcher/launched_job.hpp"

namespace ddp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::vector<std::string> exits_with(char const* code) {
  return {"--cpus", "2", "--no-log-files", "--", DDP_EXIT_RANK, code, "1"};
}

// A12
TEST(ExitFaults, ARankThatExitsInTheMiddleOfAStepIsTheFirstCause) {
  LaunchedJob job(exits_with("3"));
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 1 [^\n]*exited with code 3"));
  EXPECT_THAT(job.err(), HasSubstr("rank 1 destroyed ddp/0 in the middle of synchronised step 20"));
  EXPECT_THAT(job.err(), ContainsRegex("consequences:\n[^\n]*rank 0 [^\n]*exited with code 4: aborted"));
}

TEST(ExitFaults, SoIsOneThatExitsWith0) {
  LaunchedJob job(exits_with("0"));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(
      job.err(),
      ContainsRegex("first cause: rank 1 [^\n]*exited with code 0 in the middle of what others were in"));
  EXPECT_THAT(job.err(), HasSubstr("rank 1 destroyed ddp/0 in the middle of synchronised step 20"));
  EXPECT_THAT(job.err(), ContainsRegex("consequences:\n[^\n]*rank 0 [^\n]*exited with code 4: aborted"));
}

TEST(ExitFaults, SoIsOneThatLeavesBetweenCollectivesOfTheWorldItself) {
  LaunchedJob job({"--cpus", "3", "--no-log-files", "--", DDP_EXIT_RANK, "0", "1", "raw"});
  EXPECT_EQ(job.exit_code(), 4) << "the rank that left has no code of its own";
  EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 1 [^\n]*exited with code 0\n"
                                       "[^\n]*it left the group while others needed it\n"));
  EXPECT_THAT(job.err(), ContainsRegex("consequences:\n[^\n]*ranks? 0[^\n]*exited with code 4: peer_lost"));
}

}  // namespace
}  // namespace ddp::testing
