// The example programs on every GPU that is visible, as a user starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "faults/train_mlp_runs.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class ExamplesOnGpus : public ::testing::Test {
 protected:
  // Without options: one rank for each visible GPU.
  [[nodiscard]] ShellOutcome launch(std::string const& program, std::string const& environment = "") const {
    return run_shell(
        folder_.path(),
        text("exec env ", environment, ' ', DDP_LAUNCH, " --no-prefix --log-dir logs -- ", program), 120);
  }
  [[nodiscard]] ShellOutcome run_alone(std::string const& program) const {
    return run_shell(folder_.path(), "exec " + program, 120);
  }

  TemporaryFolder folder_;
  std::size_t gpus_ = logical_devices().size();
};

TEST_F(ExamplesOnGpus, TrainMlpTakesEveryVisibleGpu) {
  auto const outcome =
      launch(text(TRAIN_MLP, " --synthetic --limit 6000 --hidden 64 --batch 128 --epochs 6"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines(outcome.out).back(), MatchesRegex(text("final: test accuracy 0\\.[6-9][0-9]{3}, ", gpus_,
                                                           " ranks, cuda, [0-9.]+ s")));
}

TEST_F(ExamplesOnGpus, TrainMlpTrainsWithSmsSetAsideForCommunication) {
  auto const outcome = launch(text(TRAIN_MLP, " --synthetic --limit 6000 --hidden 64 --batch 128 --epochs 6"),
                              "DDP_COMM_SMS=16");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines(outcome.out).back(), MatchesRegex(text("final: test accuracy 0\\.[6-9][0-9]{3}, ", gpus_,
                                                           " ranks, cuda, [0-9.]+ s")));
}

TEST_F(ExamplesOnGpus, MoreCtasThanSmsSetAsideAreRefusedBeforeTheyCouldWaitForEachOther) {
  if (gpus_ < 2) GTEST_SKIP() << "one rank has no NCCL";
  auto const outcome = launch(HELLO_ALL_REDUCE, "DDP_COMM_SMS=8 NCCL_MIN_CTAS=32");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("NCCL_MIN_CTAS=32, but communication has 8 SMs"));
}

TEST_F(ExamplesOnGpus, TrainMlpAloneTakesOneGpu) {
  auto const outcome =
      run_alone(text(TRAIN_MLP, " --synthetic --limit 300 --hidden 8 --batch 100 --epochs 2"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(", 1 ranks, cuda, "));
}

TEST_F(ExamplesOnGpus, P1DataParallelTakesEveryVisibleGpuInOneProcess) {
  auto const outcome =
      run_alone(text(DATA_PARALLEL, " --synthetic --limit 6000 --hidden 64 --batch 128 --epochs 6"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines(outcome.out).back(), MatchesRegex(text("final: test accuracy 0\\.[6-9][0-9]{3}, ", gpus_,
                                                           " replicas, cuda, [0-9.]+ s")));
}

TEST_F(ExamplesOnGpus, P11DataParallelRunsOnVirtualDevicesOfEachGpu) {
  auto const outcome = run_alone(text("env DDP_VIRTUAL_DEVICES=2 ", DATA_PARALLEL,
                                      " --synthetic --limit 1000 --hidden 32 --batch 100 --epochs 2"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(text(", ", 2 * gpus_, " replicas, cuda, ")));
}

TEST_F(ExamplesOnGpus, TheReadmesProgramRuns) {
  auto const outcome = launch(FIRST_STEPS);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, text("trained on ", gpus_, " ranks\n"));
}

TEST_F(ExamplesOnGpus, HelloAllReduceSplitsItsStartIntoLauncherCudaNcclAndTheOperation) {
  auto const outcome = launch(text(HELLO_ALL_REDUCE, " --json start.json"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (std::size_t rank = 0; rank < gpus_; ++rank) {
    EXPECT_THAT(outcome.out, HasSubstr(text("rank ", rank, " of ", gpus_, " on cuda:", rank, " (")));
  }
  EXPECT_THAT(outcome.out,
              HasSubstr(text("counted ", gpus_, "; the sum of all ranks is ", gpus_ * (gpus_ - 1) / 2)));
  EXPECT_THAT(outcome.out, HasSubstr(" s from the command to the first all-reduce: launcher 0."));
  auto const start = nlohmann::json::parse(read_file(folder_.path() / "start.json"));
  std::printf("%s\n", start.dump().c_str());
  EXPECT_EQ(start.at("device"), "cuda");
  EXPECT_GT(start.at("device_start").get<double>(), 0.01) << "a CUDA context takes longer";
  EXPECT_LT(start.at("total").get<double>(), 60.0);
}

// A sharded training on some GPUs, stopped at its first checkpoint, that others go on with.
struct Moved {
  std::size_t gpus;  // that it needs
  std::string from;
  std::vector<std::string> to;
};

class SavedTrainingOnGpus : public ExamplesOnGpus, public ::testing::WithParamInterface<Moved> {
 protected:
  [[nodiscard]] static std::string train(std::string const& places, std::string const& more) {
    return text(DDP_LAUNCH, ' ', places, " --no-prefix --log-dir logs -- ", TRAIN_MLP,
                " --synthetic --limit 6000 --hidden 64,48 --batch 120 --epochs 16 ", more);
  }
};

TEST_P(SavedTrainingOnGpus, R25GoesOnOnFewerGpusShardedAndNot) {
  if (gpus_ < GetParam().gpus) GTEST_SKIP() << "needs " << GetParam().gpus << " GPUs, found " << gpus_;
  auto const whole = run_alone(train(GetParam().from, "--log-json whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  auto const expected = last_record(folder_.path() / "whole");
  auto const stopped =
      run_shell(folder_.path(),
                text(train(GetParam().from, "--shard --checkpoint saved --checkpoint-every 20"),
                     " & pid=$!\nfor i in $(seq 6000); do test -e saved/latest && break; sleep 0.01; done\n"
                     "kill -TERM $pid\nwait $pid"),
                120);
  ASSERT_EQ(stopped.exit_code, 143) << stopped.err;
  int next = 0;
  for (auto const& places : GetParam().to) {
    for (std::string const shard : {"", "--shard "}) {
      std::string const log = text("log", ++next);
      auto const outcome = run_shell(
          folder_.path(),
          text("cp -r saved saved", next, " && exec ",
               train(places, text(shard, "--resume --checkpoint saved", next, " --log-json ", log))),
          120);
      ASSERT_EQ(outcome.exit_code, 0) << places << ' ' << shard << outcome.err;
      EXPECT_THAT(outcome.out, HasSubstr("resumed from "));
      auto const found = last_record(folder_.path() / log);
      double const loss = expected.at("test_loss");
      EXPECT_NEAR(found.at("test_loss").get<double>(), loss, 5e-3 * loss) << places << ' ' << shard;
      ASSERT_EQ(found.at("parameters").size(), expected.at("parameters").size());
      for (std::size_t i = 0; i < found.at("parameters").size(); ++i) {
        double const norm = expected.at("parameters")[i].at("norm");
        EXPECT_NEAR(found.at("parameters")[i].at("norm").get<double>(), norm, 5e-3 * norm)
            << places << ' ' << shard << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Places, SavedTrainingOnGpus,
    ::testing::Values(Moved{1, "--gpus 0 --virtual 4", {"--gpus 0 --virtual 2", "--gpus 0"}},
                      Moved{2, "--gpus 0,1", {"--gpus 0"}},
                      Moved{4, "--gpus 0,1,2,3", {"--gpus 0,1", "--gpus 0"}}));

}  // namespace
}  // namespace ddp::testing
