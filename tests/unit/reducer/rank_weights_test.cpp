#include "reducer/parts/rank_weights.hpp"

#include <limits>

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RankWeights, WithoutThemNothingIsSentAndBucketsAreAveraged) {
  ReducerParts parts;
  RankWeights weights(parts.state, RankWeights::Without::average, true);
  parts.begin(weights);
  EXPECT_THAT(parts.communicator.calls, IsEmpty());
  EXPECT_EQ(weights.op(0).kind, ReduceOp::Kind::average);
  EXPECT_EQ(weights.factor(0), nullptr);
}

TEST(RankWeights, R4TheHeadGivesEachRankItsShareOfTheSum) {
  ReducerParts parts;
  RankWeights weights(parts.state, RankWeights::Without::average, true);
  parts.communicator.others = [](std::string const& /*call*/, TensorView const& out) {
    *static_cast<double*>(out.data) += 6;
  };
  weights.set(2);
  parts.begin(weights);
  parts.comm_stream.synchronize();
  EXPECT_THAT(parts.communicator.calls, ElementsAre("all_reduce f64[1] sum"));
  EXPECT_EQ(*weights.factor(0), 0.25);
  weights.forget();
  EXPECT_FALSE(weights.given());
}

TEST(RankWeights, R11ARankWithoutDataWeighsNothingWhereOnlyLiveOnesCount) {
  for (StepKind const kind : {StepKind::own, StepKind::joined}) {
    ReducerParts parts;
    RankWeights weights(parts.state, RankWeights::Without::live_average, true);
    parts.state.step.kind = kind;
    parts.begin(weights);
    EXPECT_EQ(weights.given(), kind == StepKind::own ? 1.0 : 0.0);
  }
}

TEST(RankWeights, R4WhatIsNoWeightIsRefused) {
  ReducerParts parts;
  RankWeights weights(parts.state, RankWeights::Without::sum, true);
  for (double const wrong :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::max()}) {
    EXPECT_THAT(message_of([&] { weights.set(wrong); }), HasSubstr("a weight is a number from 0 to "));
  }
  RankWeights forbidden(parts.state, RankWeights::Without::average, false);
  EXPECT_THAT(message_of([&] { forbidden.set(1); }), HasSubstr("divide_by_all"));
}

}  // namespace
}  // namespace ddp::testing
