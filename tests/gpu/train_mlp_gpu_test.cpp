// train_mlp on as many GPUs as there are ranks, beside one rank on the CPU (invariant 5).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iomanip>
#include <variant>

#include "ddp/core/text.hpp"
#include "support/ranks/multi_process.hpp"
#include "train_mlp/trainer.hpp"

namespace ddp::testing {
namespace {

using train_mlp::FinalRecord;

FinalRecord train(World const& where, data::DataSet const& set, train_mlp::Options const& options) {
  train_mlp::Progress progress(train_mlp::Progress::Mode::silent);
  train_mlp::RunLog log;
  return std::get<FinalRecord>(train_mlp::train(where, set, options, progress, log));
}

// Every bit of it.
std::string fingerprint(FinalRecord const& record) {
  std::string all;
  for (auto const& parameter : record.parameters) {
    all += text(parameter.name, " ", std::hexfloat, parameter.norm, " ", parameter.sum, "\n");
  }
  return all;
}

void expect_equal_on_every_rank(FinalRecord const& record) {
  std::string const mine = fingerprint(record);
  EXPECT_THAT(mine, ::testing::HasSubstr("fc1.weight"));
  auto const all =
      world().control().all_gather(world().next_name("weights"), mine, world().control().everyone(),
                                   Deadline::after(std::chrono::seconds(60)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) EXPECT_EQ(all[rank], mine) << "rank " << rank;
}

// Rank 0 alone: it takes the CPU.
FinalRecord on_the_cpu(data::DataSet const& set, train_mlp::Options const& options) {
  return train(World::in_process(1).front(), set, options);
}

TEST(TrainMlpOnGpus, ReachesTheAccuracyOfOneRankAndEveryRankHasTheSameWeights) {
  ASSERT_EQ(world().device().kind, DeviceKind::cuda);
  bool const has_files = std::filesystem::exists(data::kFashionMnistFolder);
  auto const set =
      has_files ? data::read_data_set(data::kFashionMnistFolder) : data::make_synthetic_data_set(20000, 5000);
  train_mlp::Options const options{.epochs = 4};
  FinalRecord const found = train(world(), set, options);
  EXPECT_EQ(found.device, "cuda");
  EXPECT_EQ(found.ranks, world().size());
  expect_equal_on_every_rank(found);
  if (world().rank() == 0) {
    FinalRecord const expected = on_the_cpu(set, options);
    std::printf("%s, %d GPUs: test accuracy %.4f, on the CPU %.4f; %.0f samples/s\n",
                has_files ? "Fashion-MNIST" : "made-up images", world().size(), found.test_accuracy,
                expected.test_accuracy, found.samples_per_second);
    // Seeds alone move it by 0.005.
    EXPECT_NEAR(found.test_accuracy, expected.test_accuracy, 0.01);
    EXPECT_NEAR(found.test_loss, expected.test_loss, 0.03 * expected.test_loss);
    EXPECT_GT(found.test_accuracy, 0.8);
  }
  world().barrier();
}

struct Small {
  std::size_t images;
  train_mlp::Options options;
};

class SmallTraining : public ::testing::TestWithParam<Small> {};

TEST_P(SmallTraining, IsThatOfTheCpu) {
  auto const set = data::make_synthetic_data_set(GetParam().images, GetParam().images);
  FinalRecord const found = train(world(), set, GetParam().options);
  expect_equal_on_every_rank(found);
  if (world().rank() == 0) {
    FinalRecord const expected = on_the_cpu(set, GetParam().options);
    EXPECT_NEAR(found.test_loss, expected.test_loss, 1e-3 * expected.test_loss);
    ASSERT_EQ(found.parameters.size(), expected.parameters.size());
    for (std::size_t i = 0; i < found.parameters.size(); ++i) {
      double const norm = expected.parameters[i].norm;
      EXPECT_NEAR(found.parameters[i].norm, norm, 1e-3 * norm) << expected.parameters[i].name;
    }
  }
  world().barrier();
}

INSTANTIATE_TEST_SUITE_P(Shards, SmallTraining,
                         ::testing::Values(
                             // Of unequal size for 3 ranks and 8, and a last batch of 50.
                             Small{2050, {.hidden = {32, 16}, .batch = 100, .epochs = 2, .seed = 3}},
                             // Some ranks get nothing.
                             Small{31, {.hidden = {8}, .batch = 3, .epochs = 2}}));

}  // namespace
}  // namespace ddp::testing
