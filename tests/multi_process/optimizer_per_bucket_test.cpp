// R15 with a network and an optimizer of examples/nn: weights after some steps are the same, to the bit,
// whether the optimizer runs at the end of each step or bucket by bucket.
#include <gmock/gmock.h>

#include <vector>

#include "ddp/device/tensor_ops.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "nn/adam.hpp"
#include "nn/mlp.hpp"
#include "nn/random.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

constexpr std::size_t kWidth = 50;
constexpr std::size_t kSamples = 32;

std::vector<std::vector<float>> train(bool per_bucket, GradientStorage storage) {
  nn::Context const context(world().stream());
  nn::Mlp net({kWidth, 40, 30, 10}, context);
  auto parameters = net.parameters();
  auto const weights = net.weights();
  for (std::size_t p = 0; storage != GradientStorage::arena && p < parameters.size(); ++p) {
    parameters[p].gradient = weights[p]->gradient();
  }
  DistributedDataParallelOptions options{
      .bucket_bytes = 2000_B, .first_bucket_bytes = 500_B, .storage = storage};
  DistributedDataParallel ddp(world(), std::move(parameters), options);
  nn::Adam optimizer(weights, {.learning_rate = 0.01});
  if (per_bucket) ddp.on_bucket_ready([&](ReducedBucket const& bucket) { optimizer.update(bucket); });
  Tensor const inputs = context.zeros({kSamples, kWidth}, DType::f32);
  Tensor const labels = context.zeros({kSamples}, DType::u8);
  for (int step = 0; step < 6; ++step) {
    nn::Random const random(static_cast<std::uint64_t>(world().rank().value()),
                            static_cast<std::uint64_t>(step));
    Tensor const host_inputs = Tensor::zeros({kSamples, kWidth}, DType::f32);
    Tensor const host_labels = Tensor::zeros({kSamples}, DType::u8);
    for (std::size_t i = 0; i < kSamples * kWidth; ++i) {
      host_inputs.as<float>()[i] = static_cast<float>(random.uniform(i, -1, 1));
    }
    for (std::size_t i = 0; i < kSamples; ++i)
      host_labels.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % 10);
    context.upload(host_inputs, inputs);
    context.upload(host_labels, labels);
    net.forward({inputs, labels});
    net.backward([&](std::size_t parameter) { ddp.gradient_ready(parameter); },
                 nn::Announce::when_weights_read);
    ddp.synchronize();
    if (!per_bucket) optimizer.step();
  }
  std::vector<std::vector<float>> values;
  for (nn::Weight const* const weight : weights) {
    Tensor const value = context.download(weight->value());
    values.emplace_back(value.as<float>().begin(), value.as<float>().end());
  }
  return values;
}

TEST(OptimizerPerBucket, R15AdamOfTheExamplesGivesTheSameWeights) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    auto const plain = train(false, storage);
    auto const per_bucket = train(true, storage);
    EXPECT_EQ(per_bucket, plain) << to_string(storage);
    EXPECT_NE(plain[0][0], plain[0][1]);
  }
}

}  // namespace
}  // namespace ddp::testing
