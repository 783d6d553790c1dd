// The optimizers against the formulas of their papers, written down as they stand there.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <vector>

#include "nn/adam.hpp"
#include "nn/random.hpp"
#include "nn/sgd.hpp"

namespace nn {
namespace {

constexpr std::size_t kCount = 37;
constexpr int kSteps = 25;

double gradient_of(int step, std::size_t i) {
  return Random(2, static_cast<std::uint64_t>(step)).uniform(i, -1, 1);
}

// Runs `optimizer` on one weight, and hands the values after each step to `check`.
template <class T, class Optimizer, class Check>
void run(typename Optimizer::Options const& options, Check const& check) {
  Weight weight("w", {kCount}, ddp::dtype_of<T>);
  auto const values = weight.value().as<T>();
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<T>(i) / 10;
  Optimizer optimizer({&weight}, options);
  for (int step = 1; step <= kSteps; ++step) {
    auto const gradient = weight.gradient().template as<T>();
    for (std::size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(gradient[i], T{0}) << "step() leaves gradients zero";
      gradient[i] += static_cast<T>(gradient_of(step, i));
    }
    optimizer.step();
    for (std::size_t i = 0; i < kCount; ++i) check(step, i, static_cast<double>(values[i]));
  }
}

TEST(Sgd, FollowsItsFormula) {
  std::vector<double> value(kCount);
  std::vector<double> velocity(kCount, 0.0);
  for (std::size_t i = 0; i < kCount; ++i) value[i] = static_cast<double>(i) / 10;
  run<double, Sgd>({.learning_rate = 0.05, .momentum = 0.8}, [&](int step, std::size_t i, double found) {
    velocity[i] = 0.8 * velocity[i] + gradient_of(step, i);
    value[i] = value[i] - 0.05 * velocity[i];
    EXPECT_NEAR(found, value[i], 1e-14);
  });
}

template <class T>
void check_adam(double tolerance) {
  std::vector<double> value(kCount);
  std::vector<double> mean(kCount, 0.0);
  std::vector<double> square(kCount, 0.0);
  for (std::size_t i = 0; i < kCount; ++i) value[i] = static_cast<double>(i) / 10;
  AdamOptions const options{.learning_rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3};
  run<T, Adam>(options, [&](int step, std::size_t i, double found) {
    double const g = gradient_of(step, i);
    mean[i] = 0.8 * mean[i] + (1 - 0.8) * g;
    square[i] = 0.95 * square[i] + (1 - 0.95) * g * g;
    double const m = mean[i] / (1 - std::pow(0.8, step));
    double const v = square[i] / (1 - std::pow(0.95, step));
    value[i] = value[i] - 0.02 * m / (std::sqrt(v) + 1e-3);
    EXPECT_NEAR(found, value[i], tolerance);
  });
}

TEST(Adam, FollowsItsFormulaInF64) { check_adam<double>(1e-13); }
TEST(Adam, FollowsItsFormulaInF32) { check_adam<float>(3e-6); }

TEST(Optimizers, StepEachOfSeveralWeightsAndAtANewLearningRate) {
  std::deque<Weight> weights;
  std::vector<Weight*> all;
  for (std::size_t i = 0; i < 3; ++i)
    all.push_back(&weights.emplace_back("w", ddp::Shape{i + 1}, ddp::DType::f64));
  Sgd optimizer(all, {.learning_rate = 1.0, .momentum = 0.0});
  optimizer.set_learning_rate(0.5);
  for (Weight* const weight : all) weight->gradient().as<double>().back() = 2.0;
  optimizer.step();
  for (Weight* const weight : all) EXPECT_EQ(weight->value().as<double>().back(), -1.0);
}

}  // namespace
}  // namespace nn
