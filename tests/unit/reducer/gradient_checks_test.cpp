#include "reducer/checks/gradient_checks.hpp"

#include <array>
#include <limits>

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Nonfinite = GradientChecks::Nonfinite;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Checks {
  explicit Checks(Nonfinite nonfinite, double clip_norm = 0)
      : weights(parts.state, RankWeights::Without::average, true),
        checks(parts.state, weights, {.nonfinite = nonfinite, .clip_norm = clip_norm}) {
    parts.begin(checks);
  }
  // Looks at the whole gradient of a parameter, which is `value` everywhere.
  void look(std::size_t parameter, float value) {
    TensorView const& gradient = parts.state.memory.gradient(parameter);
    std::ranges::fill(gradient.as<float>(), value);
    checks.look(std::array{GradientRun{gradient, parameter}});
  }
  void end() {
    for (std::size_t b = 0; b < parts.state.buckets.count(); ++b) checks.after_bucket(b);
    parts.end(checks);
  }
  ReducerParts parts;
  RankWeights weights;
  GradientChecks checks;
};

float found(Checks const& all) { return *GradientChecks::found_nonfinite(&all.checks).as<float>().data(); }

TEST(GradientChecks, R17NaNIsFlaggedWithItsParameter) {
  Checks all(Nonfinite::flag);
  all.look(0, 1);
  all.look(2, kNaN);
  all.end();
  EXPECT_EQ(found(all), 1);
  auto const gradients = all.checks.nonfinite_gradients();
  ASSERT_EQ(gradients.size(), 2U) << "the made-up rank has said the same";
  EXPECT_EQ(gradients[0].parameter, 2U);
  EXPECT_EQ(gradients[1].rank, Rank{1});
}

TEST(GradientChecks, R17FiniteOnesAreNotFlagged) {
  Checks all(Nonfinite::flag);
  all.look(1, 1e30F);
  all.end();
  EXPECT_EQ(found(all), 0);
}

TEST(GradientChecks, R17ARankWithWeight0HasNoSay) {
  Checks all(Nonfinite::flag);
  all.weights.set(0);
  all.weights.head();
  all.look(1, kNaN);
  all.end();
  EXPECT_EQ(found(all), 0);
}

TEST(GradientChecks, R17AnErrorNamesStepParameterAndRanks) {
  Checks all(Nonfinite::error);
  EXPECT_TRUE(all.checks.may_refuse());
  all.look(1, kNaN);
  EXPECT_THAT(message_of([&] { all.end(); }),
              HasSubstr("synchronised step 0: parameter 1 \"p1\" on rank 0, parameter 1 \"p1\" on rank 1"));
}

TEST(GradientChecks, R15AveragesAreClippedByTheirNormTogether) {
  Checks all(Nonfinite::ignore, 1.0);
  for (std::size_t p = 0; p < 3; ++p) std::ranges::fill(all.parts.state.memory.gradient(p).as<float>(), 2.0F);
  all.end();
  double const norm = *GradientChecks::norm(&all.checks).as<double>().data();
  EXPECT_DOUBLE_EQ(norm, std::sqrt(12 * 4.0));
  EXPECT_FLOAT_EQ(all.parts.state.memory.gradient(1).as<float>()[5], static_cast<float>(2 / (norm + 1e-6)));
}

TEST(GradientChecks, WhatNobodyAskedForIsSaid) {
  EXPECT_THAT(message_of([] { static_cast<void>(GradientChecks::norm(nullptr)); }),
              HasSubstr("set Options::clip_norm"));
  Checks const all(Nonfinite::error);
  EXPECT_THAT(message_of([&] { static_cast<void>(GradientChecks::found_nonfinite(&all.checks)); }),
              HasSubstr("set Options::nonfinite to flag"));
  EXPECT_EQ(all.checks.describe(), "nonfinite error, clip_norm 0");
}

}  // namespace
}  // namespace ddp::testing
