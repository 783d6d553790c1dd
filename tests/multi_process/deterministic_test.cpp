// R18: the same bits, whatever the buckets, the storage, the order of arrival and the backend.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/models/sharded_training.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Options = DistributedDataParallelOptions;

std::vector<std::size_t> const kCounts{6000, 3, 1, 2501, 700};
constexpr int kSteps = 50;

// Numbers of which sums depend on their order.
std::vector<float> gradient_of(int rank, std::size_t parameter, int step) {
  std::mt19937 random(static_cast<unsigned>((rank * 100 + static_cast<int>(parameter)) * 1000 + step));
  std::vector<float> elements(kCounts[parameter]);
  for (float& element : elements) element = static_cast<float>((static_cast<double>(random()) - 2e9) / 3e6);
  return elements;
}

struct Way {
  std::string name;
  std::size_t bucket_bytes = 25'000'000;
  GradientStorage storage = GradientStorage::arena;
  bool forwards = false;  // the order in which gradients come
  double clip_norm = 0;
  bool weights = false;
};

struct Trained {
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> first_averages;
  std::vector<double> norms;  // with clip_norm, of each step
};

Trained train(Way const& way, int steps) {
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(),
                              {.bucket_bytes = Bytes{way.bucket_bytes},
                               .first_bucket_bytes = Bytes{std::min<std::size_t>(way.bucket_bytes, 1 << 20)},
                               .storage = way.storage,
                               .deterministic = true,
                               .clip_norm = way.clip_norm});
  Trained trained;
  for (std::size_t p = 0; p < kCounts.size(); ++p) trained.weights.push_back(model.value(p));
  for (int step = 0; step < steps; ++step) {
    if (way.weights) ddp.set_weight(1.0 / (3.0 + world().rank().value() + step % 3));
    for (std::size_t i = 0; i < kCounts.size(); ++i) {
      std::size_t const p = way.forwards ? i : kCounts.size() - 1 - i;
      model.write_gradient(p, gradient_of(world().rank().value(), p, step));
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
    if (way.clip_norm > 0) {
      std::vector<double> norm(1);
      copy_elements(view_of(std::span(norm)), ddp.gradient_norm(), world().stream());
      world().stream().synchronize();
      trained.norms.push_back(norm[0]);
    }
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      auto const average = model.gradient(p);
      for (std::size_t i = 0; i < average.size(); ++i) trained.weights[p][i] -= 1e-3F * average[i];
      if (step == 0) trained.first_averages.push_back(average);
    }
  }
  return trained;
}

TEST(Deterministic, R18WeightsHaveTheSameBitsForAllBucketsStoragesAndOrders) {
  for (double const clip_norm : {0.0, 1e5}) {
    for (bool const weights : {false, true}) {
      auto const wanted = train({.name = "one bucket", .clip_norm = clip_norm, .weights = weights}, kSteps);
      std::vector<Way> const ways{
          {.name = "small buckets", .bucket_bytes = 1000},
          {.name = "middling buckets", .bucket_bytes = 8000, .forwards = true},
          {.name = "in place", .bucket_bytes = 5000, .storage = GradientStorage::in_place},
          {.name = "copied", .bucket_bytes = 11'000, .storage = GradientStorage::copy}};
      for (Way way : ways) {
        way.clip_norm = clip_norm;
        way.weights = weights;
        auto const found = train(way, kSteps);
        EXPECT_EQ(found.norms, wanted.norms) << way.name;
        for (std::size_t p = 0; p < kCounts.size(); ++p) {
          EXPECT_TRUE(found.weights[p] == wanted.weights[p])
              << way.name << (weights ? ", weights" : "") << ", clip " << clip_norm << ": parameter " << p;
        }
      }
    }
  }
}

// What makes the bits the same on every backend.
TEST(Deterministic, R18AveragesAreSumsInRankOrderDividedOnce) {
  auto const found = train({.name = "averages", .bucket_bytes = 8000}, 1).first_averages;
  auto const ranks = static_cast<float>(world().size());
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    std::vector<float> sum = gradient_of(0, p, 0);
    for (int r = 1; r < world().size(); ++r) {
      auto const next = gradient_of(r, p, 0);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(found[p][i], sum[i] / ranks) << p << ' ' << i;
  }
}

// With weights too, which NCCL alone multiplies while it sums.
TEST(Deterministic, R18AShardedOptimizerHasThePlainBits) {
  for (bool const weights : {false, true}) {
    ShardedWay const way{.name = "deterministic", .options = {.deterministic = true}, .weights = weights};
    auto const plain = train_sharded<float>(way, Updates::plain);
    EXPECT_TRUE(train_sharded<float>(way, Updates::in_backward) == plain) << "weights: " << weights;
    EXPECT_TRUE(train_sharded<float>(way, Updates::behind) == plain) << "weights: " << weights;
  }
}

TEST(Deterministic, R18RefusesANormOfShardsWhoseOrderDependsOnBuckets) {
  ShardedModel<float> model({100});
  auto const error = error_of([&] {
    DistributedDataParallel const ddp(
        world(), model.parameters(),
        {.deterministic = true, .clip_norm = 1, .sharding = Sharding::optimizer});
  });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_THAT(error.what(), HasSubstr("leave out clip_norm"));
}

TEST(Deterministic, R18RanksThatDifferInItAreTold) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  DeviceToy<float> model(world(), {100});
  auto const error = error_of<CommError>([&] {
    DistributedDataParallel const ddp(world(), model.parameters(), {.deterministic = world().rank() == 1});
  });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("deterministic"));
}

}  // namespace
}  // namespace ddp::testing
