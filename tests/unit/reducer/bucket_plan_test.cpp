// R1, R2: which gradients travel together.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "ddp/core/text.hpp"
#include "ddp/reducer/bucket_plan.hpp"

namespace ddp {
namespace {

constexpr Device kCpu{};
constexpr Device kOther{DeviceKind::cpu, DeviceIndex{1}};

std::vector<GradientSpec> floats(std::vector<std::size_t> const& counts) {
  std::vector<GradientSpec> specs;
  for (std::size_t const count : counts) specs.push_back({count, DType::f32, kCpu});
  return specs;
}

std::vector<std::size_t> parameters_of(Bucket const& bucket) {
  std::vector<std::size_t> parameters;
  for (auto const& slice : bucket.slices) parameters.push_back(slice.parameter);
  return parameters;
}

TEST(BucketPlan, R1DefaultsAre25MiBWithAFirstBucketOf1MiB) {
  // Parameters of 0.5 MiB: two fill the first bucket, fifty a later one.
  auto const specs = floats(std::vector<std::size_t>(160, std::size_t{1} << 17));
  BucketPlan const plan(specs, reverse_order(specs.size()));
  ASSERT_EQ(plan.buckets().size(), 5U);
  EXPECT_EQ(plan.buckets()[0].count * 4, std::size_t{1} << 20);
  EXPECT_EQ(plan.buckets()[1].count * 4, std::size_t{25} << 20);
  EXPECT_EQ(plan.buckets()[4].count * 4, (std::size_t{160 * 512} << 10) - (std::size_t{76} << 20));
}

TEST(BucketPlan, R2FollowsTheOrderThatIsGiven) {
  auto const specs = floats({4, 4, 4, 4});
  BucketLimits const limits{Bytes{32}, Bytes{32}};
  EXPECT_EQ(reverse_order(4), (std::vector<std::size_t>{3, 2, 1, 0}));
  BucketPlan const reversed(specs, reverse_order(4), limits);
  ASSERT_EQ(reversed.buckets().size(), 2U);
  EXPECT_EQ(parameters_of(reversed.buckets()[0]), (std::vector<std::size_t>{3, 2}));
  EXPECT_EQ(parameters_of(reversed.buckets()[1]), (std::vector<std::size_t>{1, 0}));
  BucketPlan const other(specs, std::vector<std::size_t>{0, 3, 1, 2}, limits);
  EXPECT_EQ(parameters_of(other.buckets()[0]), (std::vector<std::size_t>{0, 3}));
}

TEST(BucketPlan, R1KeepsTypesAndDevicesApart) {
  std::vector<GradientSpec> const specs{
      {10, DType::f32, kCpu}, {10, DType::f64, kCpu}, {10, DType::f32, kOther}, {10, DType::f32, kCpu}};
  BucketPlan const plan(specs, reverse_order(4));
  EXPECT_EQ(plan.arenas().size(), 3U);
  for (Bucket const& bucket : plan.buckets()) {
    for (BucketSlice const& slice : bucket.slices) {
      EXPECT_EQ(specs[slice.parameter].dtype, bucket.dtype);
      EXPECT_EQ(specs[slice.parameter].device, bucket.device);
    }
  }
}

TEST(BucketPlan, R1SplitsAParameterThatIsLargerThanABucket) {
  auto const specs = floats({8, 100, 8});
  BucketPlan const plan(specs, std::vector<std::size_t>{0, 1, 2},
                        {Bytes{64}, Bytes{128}});  // 16, 32 elements
  // 8 + 8 of the large one, then 32, 32, 28 with the last parameter behind it.
  ASSERT_EQ(plan.buckets().size(), 4U);
  EXPECT_EQ(parameters_of(plan.buckets()[0]), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(parameters_of(plan.buckets()[3]), (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(plan.buckets_of(1).size(), 4U);
  EXPECT_EQ(plan.arena_offset(1), 8U);
  std::size_t covered = 0;
  for (Bucket const& bucket : plan.buckets()) {
    for (BucketSlice const& slice : bucket.slices) {
      if (slice.parameter != 1) continue;
      EXPECT_EQ(slice.parameter_offset, covered);
      EXPECT_EQ(bucket.arena_offset + slice.bucket_offset, plan.arena_offset(1) + covered)
          << "one run of memory";
      covered += slice.count;
    }
  }
  EXPECT_EQ(covered, 100U);
}

// Whatever the sizes, types, order and limits: each element stands once, aligned, inside its bucket and
// arena.
TEST(BucketPlan, PlacesEachElementOnceForAnyInput) {
  std::mt19937 random(7);
  DType const types[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (int round = 0; round < 300; ++round) {
    std::vector<GradientSpec> specs(random() % 40 + 1);
    for (GradientSpec& spec : specs) {
      spec = {random() % (random() % 8 == 0 ? 3000 : 60), types[random() % 4],
              random() % 3 == 0 ? kOther : kCpu};
    }
    std::vector<std::size_t> order(specs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    BucketLimits const limits{Bytes{random() % 400 + 1}, Bytes{random() % 4000 + 1}};
    BucketPlan const plan(specs, order, limits);

    std::vector<std::vector<int>> arenas;
    for (Arena const& arena : plan.arenas()) arenas.emplace_back(arena.count);
    std::vector<std::size_t> covered(specs.size());
    for (Bucket const& bucket : plan.buckets()) {
      for (BucketSlice const& slice : bucket.slices) {
        ASSERT_LE(slice.bucket_offset + slice.count, bucket.count);
        covered[slice.parameter] += slice.count;
        for (std::size_t i = 0; i < slice.count; ++i) {
          std::size_t const at = bucket.arena_offset + slice.bucket_offset + i;
          ASSERT_EQ(at, plan.arena_offset(slice.parameter) + slice.parameter_offset + i);
          ASSERT_EQ(++arenas[bucket.arena][at], 1);
        }
      }
    }
    for (std::size_t p = 0; p < specs.size(); ++p) {
      ASSERT_EQ(covered[p], specs[p].count);
      ASSERT_EQ(plan.arena_offset(p) * size_of(specs[p].dtype) % BucketPlan::kAlignment, 0U);
      ASSERT_EQ(plan.buckets_of(p).empty(), specs[p].count == 0);
    }
    ASSERT_EQ(plan, BucketPlan(specs, order, limits));
    ASSERT_EQ(plan.hash(), BucketPlan(specs, order, limits).hash());
  }
}

TEST(BucketPlan, HashTellsPlansApart) {
  auto const specs = floats({4, 4, 4, 4});
  auto const hash = [&](std::vector<std::size_t> const& order, std::size_t limit) {
    return BucketPlan(specs, order, {Bytes{limit}, Bytes{limit}}).hash();
  };
  EXPECT_NE(hash({0, 1, 2, 3}, 32), hash({0, 1, 3, 2}, 32));
  EXPECT_NE(hash({0, 1, 2, 3}, 32), hash({0, 1, 2, 3}, 48));
}

TEST(BucketPlan, RefusesWhatIsNoOrder) {
  auto const specs = floats({4, 4});
  EXPECT_THROW(BucketPlan(specs, std::vector<std::size_t>{0}), Error);
  EXPECT_THROW(BucketPlan(specs, std::vector<std::size_t>{0, 0}), Error);
  EXPECT_THROW(BucketPlan(specs, std::vector<std::size_t>{0, 2}), Error);
  EXPECT_THROW(BucketPlan(specs, std::vector<std::size_t>{0, 1}, {Bytes{0}, Bytes{1}}), Error);
}

}  // namespace
}  // namespace ddp
