// What a training computes whose ranks are lost, with its global batch kept (R26).
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

constexpr std::size_t kSamples = 100;
constexpr std::size_t kFeatures = 3;
constexpr std::array<double, kFeatures> kTruth{1.0, -2.0, 0.5};

// Fits a plane to points by least squares, in global batches of 24 and micro-steps of at most 6 samples:
// those of four ranks.
struct Fit {
  explicit Fit(World in)
      : world(std::move(in)),
        weights(kFeatures),
        ddp(world, {{"weights",
                     view_of(std::span(weights)),
                     [this](TensorView const& view) { gradient = view.as<double>().data(); },
                     {}}}),
        sampler(kSamples, world, {.seed = 5}) {}

  static double feature(std::size_t sample, std::size_t f) {
    return std::sin(static_cast<double>((sample + 1) * (2 * f + 3)));
  }

  /// Adds the gradient of this part's share in the mean loss of `batch`, and returns that share, times its
  /// size.
  double add_up(Batch const& part, Batch const& batch) {
    double loss = 0;
    for (std::size_t const sample : part) {
      double error = 0;
      for (std::size_t f = 0; f < kFeatures; ++f) error += (weights[f] - kTruth[f]) * feature(sample, f);
      for (std::size_t f = 0; f < kFeatures; ++f) {
        gradient[f] += 2 * error * feature(sample, f) / static_cast<double>(batch.size());
      }
      loss += error * error;
    }
    return loss;
  }

  void train_epoch() {
    sampler.set_epoch(now.epoch);
    sampler.resume_at(now.samples);
    for (Batch const& batch : sampler.global_batches(24)) {
      ddp.set_weight(static_cast<double>(batch.size()));
      ddp.zero_gradients();
      double loss = 0;
      auto const parts = batch.parts(6);
      most_parts = std::max(most_parts, parts.size());
      for (Batch const& part : parts) {
        auto const guard = ddp.no_sync(&part != &parts.back());
        loss += add_up(part, batch);
        if (in_the_middle) in_the_middle();
        ddp.gradient_ready(0);
        ddp.synchronize();
      }
      std::size_t const samples = std::min<std::size_t>(24, kSamples - now.samples);
      loss = world.all_reduce_scalar(loss) / static_cast<double>(samples);
      for (std::size_t f = 0; f < kFeatures; ++f) weights[f] -= 0.1 * gradient[f];
      losses[now.step++] = loss;
      now.samples += samples;
    }
    now = {.epoch = now.epoch + 1, .step = now.step};
  }

  World world;
  std::vector<double> weights;
  double* gradient = nullptr;
  DistributedDataParallel ddp;
  DistributedSampler sampler;
  struct Position {
    std::uint64_t epoch = 0;
    std::size_t samples = 0;  // of this epoch
    std::size_t step = 0;
  } now;
  std::map<std::size_t, double> losses;  // by step
  std::size_t most_parts = 0;
  std::function<void()> in_the_middle;  // of a step
};

// Trains three epochs on four ranks, of which two are lost if `lose`. Returns the losses.
std::map<std::size_t, double> losses_of_four_ranks(bool lose) {
  std::map<std::size_t, double> losses;
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Fit fit(world);
    Replicated alike(world, {&fit.now});
    fit.in_the_middle = [&] {
      if (lose && ((old == 2 && fit.now.step == 3) || (old == 0 && fit.now.step == 8))) ranks.die(world);
    };
    while (fit.now.epoch < 3) try {
        fit.train_epoch();
      } catch (CommError const& error) {
        world.rebuild(error, alike);
      }
    EXPECT_EQ(world.size(), lose ? 2 : 4);
    EXPECT_EQ(fit.most_parts, lose ? 2U : 1U) << "12 samples, or 6";
    if (old == 3) losses = fit.losses;
  });
  return losses;
}

TEST(WorldRebuild, R26MicroStepsOfTheOthersKeepTheGlobalBatchAndTheLossOfEachStep) {
  auto const whole = losses_of_four_ranks(false);
  auto const broken = losses_of_four_ranks(true);
  ASSERT_EQ(whole.size(), 15U);
  ASSERT_EQ(broken.size(), 15U);
  for (auto const& [step, loss] : whole) EXPECT_NEAR(broken.at(step), loss, 1e-12) << step;
  EXPECT_LT(whole.rbegin()->second, 0.9 * whole.begin()->second) << "it learns";
}

}  // namespace
}  // namespace ddp::testing
