// The layers' gradients against central differences, in f64, where a wrong sign, factor or index cannot hide.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "nn/mlp.hpp"

namespace nn {
namespace {

struct Data {
  std::vector<double> inputs;
  std::vector<std::uint8_t> labels;
  std::size_t width = 0;

  Data(std::size_t samples, std::size_t width_, std::size_t classes) : width(width_) {
    Random const random(3, 0);
    for (std::size_t i = 0; i < samples * width; ++i) inputs.push_back(random.uniform(i, -1, 1));
    for (std::size_t i = 0; i < samples; ++i) {
      labels.push_back(static_cast<std::uint8_t>(random.bits(1000 + i) % classes));
    }
  }
  [[nodiscard]] Samples part(std::size_t first, std::size_t count) {
    return {{inputs.data() + first * width, {count, width}, ddp::DType::f64, {}},
            {labels.data() + first, {count}, ddp::DType::u8, {}}};
  }
};

std::vector<double> all_gradients(Mlp& net) {
  std::vector<double> all;
  for (Weight* const weight : net.weights()) {
    auto const gradient = weight->gradient().as<double>();
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

double mean_loss(Mlp& net, Samples const& samples) {
  net.forward(samples);
  Score const score = net.take_score();
  return score.loss / static_cast<double>(score.samples);
}

TEST(Mlp, GradientsEqualCentralDifferences) {
  Data data(9, 6, 4);
  Mlp net({6, 7, 5, 4}, {}, {.dtype = ddp::DType::f64, .seed = 11});
  auto const samples = data.part(0, 9);
  for (Weight* const weight : net.weights()) {  // biases away from 0
    for (double& value : weight->value().as<double>()) value += 0.01;
  }
  net.forward(samples);
  net.backward();
  static_cast<void>(net.take_score());
  constexpr double kStep = 1e-6;
  std::size_t checked = 0;
  for (Weight* const weight : net.weights()) {
    auto const values = weight->value().as<double>();
    auto const gradient = weight->gradient().as<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      double const value = values[i];
      values[i] = value + kStep;
      double const above = mean_loss(net, samples);
      values[i] = value - kStep;
      double const below = mean_loss(net, samples);
      values[i] = value;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8) << weight->name() << " " << i;
      if (gradient[i] != 0) ++checked;
    }
  }
  EXPECT_GT(checked, 60U) << "most gradients must be other than zero for this test to mean anything";
}

TEST(Mlp, GradientsAddUpSoThatPartsMakeTheWholeR6) {
  Data data(12, 6, 3);
  Mlp whole({6, 8, 3}, {}, {.dtype = ddp::DType::f64});
  whole.forward(data.part(0, 12));
  whole.backward();
  Mlp parts({6, 8, 3}, {}, {.dtype = ddp::DType::f64});
  for (std::size_t first = 0; first < 12; first += 4) {
    parts.forward(data.part(first, 4));
    parts.backward();
  }
  auto const expected = all_gradients(whole);
  auto const found = all_gradients(parts);
  ASSERT_EQ(expected.size(), 6U * 8 + 8 + 8 * 3 + 3);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i] / 3, expected[i], 1e-15);
}

TEST(Mlp, MarksEachParameterOnceFromTheLastToTheFirstAndComplete) {
  Data data(5, 6, 3);
  Mlp reference({6, 8, 3}, {}, {.dtype = ddp::DType::f64});
  reference.forward(data.part(0, 5));
  reference.backward();
  Mlp net({6, 8, 3}, {}, {.dtype = ddp::DType::f64});
  net.forward(data.part(0, 5));
  std::vector<std::size_t> order;
  net.backward([&](std::size_t index) {
    order.push_back(index);
    auto const now = net.weights()[index]->gradient().as<double>();
    auto const final = reference.weights()[index]->gradient().as<double>();
    EXPECT_TRUE(std::equal(now.begin(), now.end(), final.begin())) << "parameter " << index;
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{3, 2, 1, 0}));
}

TEST(Mlp, WithNoSamplesItAddsNothingAndStillMarksEverything) {
  Data data(1, 6, 3);
  Mlp net({6, 8, 3}, {}, {.dtype = ddp::DType::f64});
  net.forward(data.part(0, 0));
  Score const score = net.take_score();
  EXPECT_EQ(score.samples, 0U);
  EXPECT_EQ(score.loss, 0.0);
  std::size_t marked = 0;
  net.backward([&](std::size_t) { ++marked; });
  EXPECT_EQ(marked, 4U);
  for (double const gradient : all_gradients(net)) EXPECT_EQ(gradient, 0.0);
}

TEST(Mlp, WritesItsGradientsWhereItIsBoundR3) {
  Data data(5, 6, 3);
  Mlp net({6, 3}, {}, {.dtype = ddp::DType::f64});
  net.forward(data.part(0, 5));
  net.backward();
  auto const expected = all_gradients(net);
  std::vector<double> arena(expected.size() + 1, 0.0);
  std::size_t offset = 0;
  for (ddp::Parameter const& parameter : net.parameters()) {
    ddp::TensorView view = parameter.value;
    view.data = arena.data() + offset;
    offset += view.count();
    parameter.bind_gradient({view, nullptr});
  }
  net.backward();
  EXPECT_EQ(std::vector<double>(arena.begin(), arena.end() - 1), expected);
}

TEST(Mlp, InitialValuesDependOnTheSeedOnly) {
  Mlp first({784, 4, 10}, {}, {.seed = 5});
  Mlp second({784, 4, 10}, {}, {.seed = 5});
  Mlp other({784, 4, 10}, {}, {.seed = 6});
  auto const a = first.weights()[0]->value().as<float>();
  auto const b = second.weights()[0]->value().as<float>();
  auto const c = other.weights()[0]->value().as<float>();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  EXPECT_FALSE(std::equal(a.begin(), a.end(), c.begin()));
  double const bound = std::sqrt(6.0 / 784);
  EXPECT_LE(*std::max_element(a.begin(), a.end()), bound);
  EXPECT_GE(*std::min_element(a.begin(), a.end()), -bound);
  double const squares = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  EXPECT_NEAR(squares / static_cast<double>(a.size()), bound * bound / 3, 0.05 * bound * bound / 3);
  // The first values, written down: another machine, compiler or library must find the same.
  Random const random(5, 0);
  EXPECT_EQ(a[0], static_cast<float>(random.uniform(0, -bound, bound)));
  EXPECT_EQ(random.bits(0), 0xa711a1abdd4d6f75U);
  EXPECT_EQ(random.bits(1), 0xead940c3772c3d48U);
}

TEST(SoftmaxCrossEntropy, SurvivesLargeLogitsAndCountsWhatIsCorrect) {
  std::vector<double> logits{1000, 0, -1000, 2, 2, 1};
  std::vector<std::uint8_t> labels{1, 0};
  std::vector<double> slopes(6, -1.0);
  Score const score = cpu::softmax_cross_entropy({logits.data(), {2, 3}, ddp::DType::f64, {}},
                                                 {labels.data(), {2}, ddp::DType::u8, {}},
                                                 {slopes.data(), {2, 3}, ddp::DType::f64, {}});
  EXPECT_NEAR(score.loss, 1000 + std::log(2 + std::exp(-1.0)), 1e-12);
  EXPECT_EQ(score.correct, 1U) << "of equal logits the first one counts";
  EXPECT_NEAR(slopes[0], 0.5, 1e-15);
  EXPECT_NEAR(slopes[1], -0.5, 1e-15);
  EXPECT_NEAR(slopes[2], 0.0, 1e-15);
  EXPECT_NEAR(slopes[3] + slopes[4] + slopes[5], 0.0, 1e-15);
}

TEST(SoftmaxCrossEntropy, RefusesALabelThatIsNoClass) {
  std::vector<float> logits(3);
  std::vector<std::uint8_t> labels{3};
  EXPECT_THROW(cpu::softmax_cross_entropy({logits.data(), {1, 3}, ddp::DType::f32, {}},
                                          {labels.data(), {1}, ddp::DType::u8, {}}, {}),
               ddp::Error);
}

TEST(SoftmaxCrossEntropy, AddsScoresUpUntilTheyAreTaken) {
  std::vector<double> logits{0, 1, 2, 0};
  std::vector<std::uint8_t> labels{1, 1};
  ddp::TensorView const all{logits.data(), {2, 2}, ddp::DType::f64, {}};
  SoftmaxCrossEntropy loss{Context{}};
  loss.forward(all, ddp::view_of(std::span(labels)), {});
  loss.forward(all, ddp::view_of(std::span(labels)), {});
  Score const score = loss.take_score();
  EXPECT_NEAR(score.loss, 2 * (std::log(1 + std::exp(-1.0)) + 2 + std::log(1 + std::exp(-2.0))), 1e-12);
  EXPECT_EQ(score.correct, 2U);
  EXPECT_EQ(score.samples, 4U);
  EXPECT_EQ(loss.take_score().samples, 0U);
}

TEST(SoftmaxCrossEntropy, WantsOneLabelForEachRow) {
  std::vector<float> logits(4);
  std::vector<std::uint8_t> labels{0};
  SoftmaxCrossEntropy loss{Context{}};
  EXPECT_THROW(
      loss.forward({logits.data(), {2, 2}, ddp::DType::f32, {}}, ddp::view_of(std::span(labels)), {}),
      ddp::Error);
}

TEST(Context, RefusesAStreamOfTheCpuWithAThreadOfItsOwn) {
  ddp::HostStream stream;
  EXPECT_THROW(Context{stream}, ddp::Error);
}

TEST(Mlp, RefusesWhatItCannotCompute) {
  EXPECT_THROW(Mlp({784}, {}), ddp::Error);
  EXPECT_THROW(Mlp({784, 0, 10}, {}), ddp::Error);
  EXPECT_THROW(Mlp({784, 10}, {}, {.dtype = ddp::DType::f16}), ddp::Error);
  Mlp net({6, 3}, {}, {.dtype = ddp::DType::f64});
  Data data(2, 5, 3);
  EXPECT_THROW(net.forward(data.part(0, 2)), ddp::Error);
  EXPECT_THROW(net.backward(), ddp::Error);
}

}  // namespace
}  // namespace nn
