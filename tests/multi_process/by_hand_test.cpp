// A program that is started by itself, without a launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/device/logical_device.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

ShellOutcome run_alone(std::string const& variables) {
  TemporaryFolder const folder;
  return run_shell(folder.path(), variables + " " LAUNCHED_RANK " '*=world'");
}

// A13: not a word would be a slow surprise for whoever has a GPU.
TEST(ByHand, ARankWithoutAGpuLogsWhichDeviceItTakesAndWhy) {
  auto const outcome = run_alone("CUDA_VISIBLE_DEVICES= DDP_LOG=info");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("rank 0 of 1 on cpu:0"));
  EXPECT_THAT(outcome.err,
              HasSubstr("info: rank 0 computes on cpu:0: CUDA_VISIBLE_DEVICES= leaves 0 logical devices ("));
  if (!is_built_with_cuda()) {
    EXPECT_THAT(outcome.err, HasSubstr("(this build of ddp has no CUDA)"));
  }
  EXPECT_THAT(outcome.err, HasSubstr("ddp-launch --list-devices shows what is there"));
}

TEST(ByHand, ARankThatIsGivenGpusWhereNoneIsThereSaysThatItTakesTheCpu) {
  auto const outcome = run_alone("CUDA_VISIBLE_DEVICES=99");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("rank 0 of 1 on cpu:0"));
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: ranks compute on the CPU: CUDA finds none of the GPUs that this "
                        "rank was given, CUDA_VISIBLE_DEVICES=99: "));
}

TEST(ByHand, TheOnlyRankOfAJobNeedsNoLauncher) {
  auto const outcome = run_alone("CUDA_VISIBLE_DEVICES= RANK=0 WORLD_SIZE=1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("rank 0 of 1 on cpu:0"));
}

TEST(ByHand, WithoutALogARankOnTheCpuIsQuiet) {
  auto const outcome = run_alone("CUDA_VISIBLE_DEVICES=");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace ddp::testing
