// R18: the same bits, whatever the buckets, the storage, the order of arrival and the backend.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>

#include "ddp/core/text.hpp"
#include "ddp/parallel/step_graph.hpp"
#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/models/sharded_training.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Options = DistributedDataParallelOptions;

using Counts = std::vector<std::size_t>;

Counts const kSmall{6000, 3, 1, 2501, 700};
constexpr int kSteps = 50;

// Numbers of which sums depend on their order, as any good hash gives them.
std::vector<float> gradient_of(int rank, std::size_t parameter, int step, std::size_t count) {
  std::uint64_t const seed =
      (static_cast<std::uint64_t>(rank * 100) + parameter) * 1000 + static_cast<std::uint64_t>(step);
  std::vector<float> elements(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t hash = (seed << 32U) + i;
    for (int round = 0; round < 2; ++round) hash = (hash ^ (hash >> 31U)) * 0x9E3779B97F4A7C15U;
    elements[i] = static_cast<float>((static_cast<double>(hash >> 32U) - 2e9) / 3e6);
  }
  return elements;
}

struct Way {
  std::string name;
  std::size_t bucket_bytes = 25'000'000;
  GradientStorage storage = GradientStorage::arena;
  bool forwards = false;  // the order in which gradients come
  bool graph = false;     // steps are recorded, where they can be
  int restarted_at = 0;   // with a new DistributedDataParallel, of buckets half as large
  double clip_norm = 0;
  bool weights = false;
};

struct Trained {
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> first_averages;
  std::vector<double> norms;  // with clip_norm, of each step
};

// Continues `trained` from step `first` to `end`.
void train(Way const& way, int first, int end, Counts const& counts, Trained& trained) {
  DeviceToy<float> model(world(), counts);
  DistributedDataParallel ddp(world(), model.parameters(),
                              {.bucket_bytes = Bytes{way.bucket_bytes},
                               .first_bucket_bytes = Bytes{std::min<std::size_t>(way.bucket_bytes, 1 << 20)},
                               .storage = way.storage,
                               .deterministic = true,
                               .clip_norm = way.clip_norm});
  std::vector<Tensor> inputs;
  for (std::size_t const count : counts) {
    inputs.push_back(zeros(Shape{count}, DType::f32, world().device()));
  }
  auto const average = [&] {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::size_t const p = way.forwards ? i : counts.size() - 1 - i;
      copy_elements(model.gradient_view(p), inputs[p], world().stream());
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
  };
  StepGraph graph(ddp, average);
  for (int step = first; step < end; ++step) {
    if (way.weights) ddp.set_weight(1.0 / (3.0 + world().rank().value() + step % 3));
    for (std::size_t p = 0; p < counts.size(); ++p) {
      auto gradient = gradient_of(world().rank().value(), p, step, counts[p]);
      copy_elements(inputs[p], view_of(std::span(gradient)), world().stream());
      world().stream().synchronize();
    }
    way.graph ? graph.run() : average();
    if (way.clip_norm > 0) {
      std::vector<double> norm(1);
      copy_elements(view_of(std::span(norm)), ddp.gradient_norm(), world().stream());
      world().stream().synchronize();
      trained.norms.push_back(norm[0]);
    }
    for (std::size_t p = 0; p < counts.size(); ++p) {
      auto const averages = model.gradient(p);
      for (std::size_t i = 0; i < averages.size(); ++i) trained.weights[p][i] -= 1e-3F * averages[i];
      if (step == 0) trained.first_averages.push_back(averages);
    }
  }
  EXPECT_EQ(graph.is_recorded(), way.graph && records_steps()) << way.name << ": " << graph.why_eager();
}

Trained train(Way way, int steps, Counts const& counts = kSmall) {
  Trained trained;
  for (std::size_t const count : counts) trained.weights.emplace_back(count, 0.5F);
  train(way, 0, way.restarted_at > 0 ? way.restarted_at : steps, counts, trained);
  if (way.restarted_at > 0) {
    way.bucket_bytes /= 2;
    train(way, way.restarted_at, steps, counts, trained);
  }
  return trained;
}

void expect_same(Trained const& found, Trained const& wanted, std::string const& way) {
  EXPECT_EQ(found.norms, wanted.norms) << way;
  for (std::size_t p = 0; p < wanted.weights.size(); ++p) {
    EXPECT_TRUE(found.weights[p] == wanted.weights[p]) << way << ": parameter " << p;
  }
}

TEST(Deterministic, R18WeightsHaveTheSameBitsForAllBucketsStoragesAndOrders) {
  for (double const clip_norm : {0.0, 1e5}) {
    for (bool const weights : {false, true}) {
      auto const wanted = train({.name = "one bucket", .clip_norm = clip_norm, .weights = weights}, kSteps);
      std::vector<Way> const ways{
          {.name = "small buckets", .bucket_bytes = 1000},
          {.name = "middling buckets", .bucket_bytes = 8000, .forwards = true},
          {.name = "in place", .bucket_bytes = 5000, .storage = GradientStorage::in_place},
          {.name = "copied", .bucket_bytes = 11'000, .storage = GradientStorage::copy},
          {.name = "a graph", .bucket_bytes = 3000, .graph = true},
          {.name = "a graph of copies",
           .bucket_bytes = 9000,
           .storage = GradientStorage::copy,
           .graph = true},
          {.name = "restarted", .bucket_bytes = 8000, .restarted_at = 20},
          {.name = "a restarted graph", .bucket_bytes = 8000, .graph = true, .restarted_at = 30}};
      for (Way way : ways) {
        way.clip_norm = clip_norm;
        way.weights = weights;
        expect_same(train(way, kSteps), wanted, text(way.name, ", weights: ", weights, ", clip ", clip_norm));
      }
    }
  }
}

// Of a size for which NCCL's ranks give each other parts. On CPUs, where they never do, a 256th of that.
TEST(Deterministic, R18WeightsHaveTheSameBitsForBucketsOf1To100MiB) {
  constexpr std::size_t kMiB = 1 << 20;
  std::size_t const smaller = world().device().kind == DeviceKind::cuda ? 1 : 256;
  Counts counts{9'000'000, 3, 14'000'000, 2'500'001, 4'000'000};
  for (std::size_t& count : counts) count = std::max<std::size_t>(count / smaller, 1);
  constexpr int kFewSteps = 5;
  auto const wanted = train({.name = "one bucket", .bucket_bytes = 200 * kMiB}, kFewSteps, counts);
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    for (std::size_t const size : {1, 5, 25, 100}) {
      for (bool const graph : {false, true}) {
        Way const way{.name = text(to_string(storage), " in buckets of ", size, " MiB, graph: ", graph),
                      .bucket_bytes = size * kMiB / smaller,
                      .storage = storage,
                      .graph = graph};
        expect_same(train(way, kFewSteps, counts), wanted, way.name);
      }
    }
  }
}

// What makes the bits the same on every backend.
TEST(Deterministic, R18AveragesAreSumsInRankOrderDividedOnce) {
  auto const found = train({.name = "averages", .bucket_bytes = 8000}, 1).first_averages;
  auto const ranks = static_cast<float>(world().size());
  for (std::size_t p = 0; p < kSmall.size(); ++p) {
    std::vector<float> sum = gradient_of(0, p, 0, kSmall[p]);
    for (int r = 1; r < world().size(); ++r) {
      auto const next = gradient_of(r, p, 0, kSmall[p]);
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
