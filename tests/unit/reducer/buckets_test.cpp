#include "reducer/buckets/buckets.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Buckets, KnowTheirLanesAndTheLargestOne) {
  ReducerParts parts;
  Buckets const& buckets = parts.state.buckets;
  ASSERT_EQ(buckets.count(), 2U);
  EXPECT_EQ(buckets.lane(1), 0U);
  EXPECT_EQ(buckets.tail_lane(), 0U);
  EXPECT_EQ(buckets.most_slices(), 2U);
  EXPECT_FALSE(buckets.has_empty_parameters());
  EXPECT_EQ(buckets.rebuilds(), 0);
}

TEST(Buckets, R2TheOrderOfTheFirstRankComesFirstAndTheRestAsBefore) {
  ReducerParts parts(1);
  std::vector<std::size_t> const arrival{1};
  EXPECT_THAT(parts.state.buckets.agreed_order(arrival, {}, parts.state.ranks), ElementsAre(1, 2, 0));
}

TEST(Buckets, R27WhatARankHasLeftOutComesLast) {
  ReducerParts parts(1);
  std::vector<std::size_t> const arrival{2, 1};
  std::vector<std::size_t> const left_out{2};
  EXPECT_THAT(parts.state.buckets.agreed_order(arrival, left_out, parts.state.ranks), ElementsAre(1, 0, 2));
}

TEST(Buckets, R2AnotherPlanIsARebuild) {
  ReducerParts parts;
  parts.state.buckets.use(parts.state.buckets.plan_for(std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(parts.state.buckets.rebuilds(), 1);
  EXPECT_EQ(parts.state.buckets[0].slices[0].parameter, 0U);
}

TEST(Buckets, R12AreDescribedWithTheirLimits) {
  ReducerParts parts;
  EXPECT_THAT(parts.state.buckets.describe(parts.state.buckets.plan()),
              HasSubstr("2 buckets (first 32 B, others 32 B), plan "));
}

}  // namespace
}  // namespace ddp::testing
