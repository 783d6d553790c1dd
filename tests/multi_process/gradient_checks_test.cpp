// R15 and R17: the norm of all averages, and gradients that are not finite.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ddp/core/text.hpp"
#include "multi_process/uneven_steps.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::Not;
using Nonfinite = DistributedDataParallelOptions::Nonfinite;

std::vector<std::size_t> const kSizes{40'000, 3, 700, 1};

DistributedDataParallelOptions several_buckets() {
  return {.bucket_bytes = 20'000_B, .first_bucket_bytes = 500_B};
}

template <class T>
T read(TensorView const& word) {
  T value{};
  copy_elements(view_of(std::span(&value, 1)), word, world().stream());
  world().stream().synchronize();
  return value;
}

void fill(DeviceToy<float>& model) { model.fill_gradients(world().rank().value()); }

double norm_of_averages() {
  double sum = 0;
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    for (std::size_t i = 0; i < kSizes[p]; ++i) {
      sum += std::pow(static_cast<double>(ToyModel::average_gradient(p, i, world().size())), 2);
    }
  }
  return std::sqrt(sum);
}

// Makes one element of a parameter of this rank what it is not.
void spoil(DeviceToy<float>& model, std::size_t parameter, float with) {
  std::vector<float> gradient(kSizes[parameter], 1.0F);
  gradient[gradient.size() * 2 / 3] = with;
  model.write_gradient(parameter, gradient);
}

TEST(GradientNorm, R15AveragesAreClippedToTheNormThatTheOracleHas) {
  double const norm = norm_of_averages();
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    for (double const limit : {norm / 3, norm * 2}) {
      DeviceToy<float> model(world(), kSizes);
      DistributedDataParallelOptions options = several_buckets();
      options.storage = storage;
      options.clip_norm = limit;
      DistributedDataParallel ddp(world(), model.parameters(), options);
      double const factor = std::min(1.0, limit / (norm + 1e-6));
      for (int step = 0; step < 3; ++step) {
        fill(model);
        for (std::size_t p = 0; p < kSizes.size(); ++p) ddp.gradient_ready(p);  // buckets are rebuilt
        ddp.synchronize();
        auto const found = read<double>(ddp.gradient_norm());
        EXPECT_NEAR(found, norm, norm * 1e-12);
        EXPECT_THAT(gathered(text(std::bit_cast<std::uint64_t>(found))),
                    Each(text(std::bit_cast<std::uint64_t>(found))))
            << "the same bits on every rank";
        for (std::size_t p = 0; p < kSizes.size(); ++p) {
          auto const gradient = model.gradient(p);
          for (std::size_t i = 0; i < gradient.size(); ++i) {
            double const expected =
                factor * static_cast<double>(ToyModel::average_gradient(p, i, world().size()));
            ASSERT_NEAR(gradient[i], expected, std::abs(expected) * 1e-6)
                << to_string(storage) << ' ' << p << ' ' << i;
          }
        }
      }
    }
  }
}

TEST(GradientNorm, R15OptionsAreTheSameOnEveryRankAndMakeSense) {
  DeviceToy<float> model(world(), kSizes);
  for (double const wrong : {-1.0, static_cast<double>(kNan), static_cast<double>(kInfinite)}) {
    EXPECT_THAT(
        message_of([&] { DistributedDataParallel(world(), model.parameters(), {.clip_norm = wrong}); }),
        HasSubstr("Options::clip_norm: expected a finite number above 0"));
  }
  DistributedDataParallel plain(world(), model.parameters());
  EXPECT_THAT(message_of([&] { static_cast<void>(plain.gradient_norm()); }),
              HasSubstr("set Options::clip_norm"));
  EXPECT_THAT(message_of([&] { static_cast<void>(plain.found_nonfinite()); }),
              HasSubstr("nonfinite to flag"));
  if (world().size() == 1) return;
  double const mine = world().rank() == 1 ? 2.0 : 1.0;
  auto const messages = gathered(
      message_of([&] { DistributedDataParallel(world(), model.parameters(), {.clip_norm = mine}); }));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("clip_norm 2"), HasSubstr("clip_norm 1"))));
  double const almost = world().rank() == 1 ? 1 + 1e-12 : 1.0;
  EXPECT_THAT(gathered(message_of(
                  [&] { DistributedDataParallel(world(), model.parameters(), {.clip_norm = almost}); })),
              Each(HasSubstr("give every rank the same options")));
}

TEST(Nonfinite, R17F11EveryRankIsToldParameterAndRankBeforeWeightsChange) {
  for (float const wrong : {kNan, -kInfinite}) {
    for (std::size_t const parameter :
         {std::size_t{0}, std::size_t{3}}) {  // in the last bucket, and the first
      DeviceToy<float> model(world(), kSizes);
      DistributedDataParallelOptions options = several_buckets();
      options.nonfinite = Nonfinite::error;
      OwnReducer reducer(model, options);
      fill(model);
      reducer.step(kSizes.size());
      auto const before = model.value(0);
      int const odd = world().size() - 1;
      if (world().rank().value() == odd) spoil(model, parameter, wrong);
      auto const messages = gathered(message_of([&] { reducer.train(); }));
      EXPECT_THAT(messages, Each(messages[0]));
      EXPECT_THAT(messages[0],
                  HasSubstr(text("gradients with NaN or infinity in synchronised step 1: parameter ",
                                 parameter, " \"p", parameter, "\" on rank ", odd, ". No weights")));
      EXPECT_EQ(model.value(0), before);
      EXPECT_NE(before[1], 0.0F) << "the optimizer would not show";
    }
  }
}

TEST(Nonfinite, R17AFlaggedStepIsKnownOnEveryRankAndTheNextOneIsClean) {
  for (bool const clips : {false, true}) {
    DeviceToy<float> model(world(), kSizes);
    DistributedDataParallelOptions options = several_buckets();
    options.nonfinite = Nonfinite::flag;
    options.clip_norm = clips ? 1.0 : 0.0;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    int const odd = world().size() - 1;
    for (int step = 0; step < 4; ++step) {
      fill(model);
      bool const spoilt = step == 0 || step == 2;
      if (spoilt && world().rank().value() == odd) spoil(model, 2, kNan);
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(read<float>(ddp.found_nonfinite()), spoilt ? 1.0F : 0.0F) << "step " << step;
      auto const found = ddp.nonfinite_gradients();
      ASSERT_EQ(found.size(), spoilt ? 1U : 0U) << "step " << step;
      if (spoilt) {
        EXPECT_EQ(found[0].parameter, 2U);
        EXPECT_EQ(found[0].rank, Rank{odd});
      }
      if (clips) {
        EXPECT_EQ(std::isnan(read<double>(ddp.gradient_norm())), spoilt);
      }
      ddp.zero_gradients();
    }
  }
}

// As of a rank without samples, whose mean over none is NaN.
TEST(Nonfinite, R17ARankWithWeight0HasNoSay) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  for (auto const how : {Nonfinite::flag, Nonfinite::error}) {
    for (bool const converts : {false, true}) {
      DeviceToy<float> model(world(), kSizes);
      DistributedDataParallelOptions options = several_buckets();
      options.nonfinite = how;
      options.clip_norm = 1e6;
      if (converts) options.reduce_dtype = DType::f64;
      OwnReducer reducer(model, options);
      bool const odd = world().rank().value() == world().size() - 1;
      for (int step = 0; step < 3; ++step) {
        for (std::size_t p = 0; p < kSizes.size(); ++p) {
          if (odd) {
            spoil(model, p, kNan);
          } else {
            model.write_gradient(p, std::vector<float>(kSizes[p], 2.0F));
          }
        }
        reducer->set_weight(odd ? 0 : 3);
        reducer.step(kSizes.size());
        reducer.wait();
        EXPECT_THAT(model.gradient(2), Each(FloatEq(2.0F)));
        EXPECT_TRUE(std::isfinite(read<double>(reducer->gradient_norm())));
        if (how == Nonfinite::flag) {
          EXPECT_EQ(read<float>(reducer->found_nonfinite()), 0.0F);
          EXPECT_TRUE(reducer->nonfinite_gradients().empty());
        }
      }
      if (odd) spoil(model, 2, kNan);
      reducer->set_weight(1);
      auto const step = [&] {
        reducer.step(kSizes.size());
        reducer.wait();
      };
      if (how == Nonfinite::error) {
        EXPECT_THAT(message_of(step), HasSubstr("NaN or infinity"));
      } else {
        step();
        EXPECT_EQ(read<float>(reducer->found_nonfinite()), 1.0F);
      }
    }
  }
}

TEST(Nonfinite, R17WhatTheWireCannotHoldIsFoundToo) {
  DeviceToy<float> model(world(), kSizes);
  DistributedDataParallel ddp(world(), model.parameters(),
                              {.reduce_dtype = DType::f16, .nonfinite = Nonfinite::flag});
  fill(model);
  if (world().rank() == 0) spoil(model, 0, 1e5F);  // finite, but not in f16
  mark_all(ddp);
  ddp.synchronize();
  EXPECT_EQ(read<float>(ddp.found_nonfinite()), 1.0F);
}

TEST(Nonfinite, R15UpdatesWaitForTheEndOfTheStepWhereTheyMustKnow) {
  DeviceToy<float> model(world(), kSizes);
  DistributedDataParallelOptions options = several_buckets();
  options.clip_norm = 1e-3;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  std::vector<std::size_t> order;
  ddp.on_bucket_ready([&](ReducedBucket const& bucket) { order.push_back(bucket.index); });
  fill(model);
  mark_all(ddp);
  EXPECT_TRUE(order.empty());
  ddp.synchronize();
  ASSERT_GT(order.size(), 2U);
  for (std::size_t b = 0; b < order.size(); ++b) EXPECT_EQ(order[b], b);
}

}  // namespace
}  // namespace ddp::testing
