// R25 with a network and an optimizer of examples/nn: weights after some steps are the same, to the bit,
// whether every rank updates all of them, or its part, in the backward pass or behind it.
#include <gmock/gmock.h>

#include <optional>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "ddp/parallel/step_graph.hpp"
#include "nn/adam.hpp"
#include "nn/mlp.hpp"
#include "nn/random.hpp"
#include "support/errors.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kWidth = 50;
constexpr std::size_t kSamples = 32;

enum class How { plain, in_backward, behind };

// Other samples on each rank, and in each step.
void make_samples(nn::Context const& context, nn::Samples const& samples, int step) {
  nn::Random const random(static_cast<std::uint64_t>(world().rank().value()),
                          static_cast<std::uint64_t>(step));
  Tensor const inputs = Tensor::zeros({kSamples, kWidth}, DType::f32);
  Tensor const labels = Tensor::zeros({kSamples}, DType::u8);
  for (std::size_t i = 0; i < kSamples * kWidth; ++i) {
    inputs.as<float>()[i] = static_cast<float>(random.uniform(i, -1, 1));
  }
  for (std::size_t i = 0; i < kSamples; ++i) labels.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % 10);
  context.upload(inputs, samples.inputs);
  context.upload(labels, samples.labels);
}

std::vector<std::vector<float>> train(How how, bool graph) {
  nn::Context const context(world().stream());
  nn::Mlp net({kWidth, 40, 30, 10}, context);
  bool const sharded = how != How::plain;
  DistributedDataParallelOptions options{.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B};
  if (sharded) options.sharding = Sharding::optimizer;
  DistributedDataParallel ddp(world(), net.parameters(), options);
  nn::Adam optimizer = sharded ? nn::Adam(ddp.slices(), context) : nn::Adam(net.weights());
  SliceReady const update = [&](Slice const& slice, Stream& stream) { optimizer.update(slice, stream); };
  if (how == How::in_backward) ddp.on_slice_ready(update);
  Tensor const inputs = context.zeros({kSamples, kWidth}, DType::f32);
  Tensor const labels = context.zeros({kSamples}, DType::u8);
  net.reserve(kSamples);
  auto const step = [&] {
    if (sharded) ddp.zero_gradients();
    net.forward({inputs, labels});
    net.backward([&](std::size_t parameter) { ddp.gradient_ready(parameter); },
                 how == How::in_backward ? nn::Announce::when_weights_read : nn::Announce::at_once);
    ddp.synchronize();
    if (how == How::behind) ddp.update_slices(update);
    if (how == How::plain) optimizer.apply();
  };
  std::optional<StepGraph> recorded;
  if (graph) recorded.emplace(ddp, step);
  for (int number = 0; number < 8; ++number) {
    make_samples(context, {inputs, labels}, number);
    optimizer.set_learning_rate(0.01 / (1 + number));
    optimizer.prepare(number + 1);
    graph ? recorded->run() : step();
    if (how != How::behind) continue;
    EXPECT_THAT(error_of([&] { ddp.update_slices(update); }).what(), HasSubstr("twice"));
  }
  EXPECT_EQ(graph && recorded->is_recorded(), graph && records_steps());
  std::vector<std::vector<float>> values;
  for (nn::Weight const* const weight : net.weights()) {
    Tensor const value = context.download(weight->value());
    values.emplace_back(value.as<float>().begin(), value.as<float>().end());
  }
  return values;
}

TEST(OptimizerSharded, R25AdamOfTheExamplesGivesTheSameWeights) {
  auto const plain = train(How::plain, false);
  EXPECT_NE(plain[0][0], plain[0][1]);
  EXPECT_EQ(train(How::in_backward, false), plain);
  EXPECT_EQ(train(How::behind, false), plain);
}

TEST(OptimizerSharded, R24R25SoItDoesInARecordedStep) {
  auto const plain = train(How::plain, false);
  EXPECT_EQ(train(How::in_backward, true), plain);
  EXPECT_EQ(train(How::behind, true), plain);
}

TEST(OptimizerSharded, R25WeightsLiveOnBehindTheWrapper) {
  nn::Context const context(world().stream());
  nn::Mlp net({kWidth, 10}, context);
  std::vector<Tensor> before;
  for (nn::Weight const* const weight : net.weights()) before.push_back(context.download(weight->value()));
  DistributedDataParallel(world(), net.parameters(), {.sharding = Sharding::optimizer});
  for (std::size_t i = 0; i < before.size(); ++i) {
    Tensor const value = context.download(net.weights()[i]->value());
    EXPECT_THAT(value.as<float>(), ::testing::ElementsAreArray(before[i].as<float>()));
  }
}

}  // namespace
}  // namespace ddp::testing
