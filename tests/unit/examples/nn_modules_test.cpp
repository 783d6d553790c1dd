// The layers as modules: DataParallel of them is nn::Mlp.
#include "nn/modules.hpp"

#include <gtest/gtest.h>

#include "ddp/data_parallel/data_parallel.hpp"
#include "nn/mlp.hpp"
#include "nn/sgd.hpp"
#include "support/devices/test_devices.hpp"

namespace ddp::testing {
namespace {

std::vector<std::uint8_t> labels(std::size_t count) {
  std::vector<std::uint8_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<std::uint8_t>(i * 7 % 5);
  return all;
}

std::vector<float> pixels(std::size_t count) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<float>(i * 31 % 97) / 97.0F - 0.5F;
  return all;
}

std::vector<float> values(std::vector<nn::Weight*> const& weights) {
  std::vector<float> all;
  for (nn::Weight* const weight : weights) {
    auto const each = elements_of<float>(weight->value(), weight->context().stream());
    all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

TEST(NnModules, P12DataParallelWithTheLossOnTheReplicasTrainsAsMlpDoes) {
  std::vector<std::size_t> const widths{12, 20, 16, 5};
  constexpr std::size_t kBatch = 11;
  Tensor const x = tensor_on<float>(test_device(0), {kBatch, 12}, pixels(kBatch * 12));
  Tensor const y = tensor_on<std::uint8_t>(test_device(0), {kBatch}, labels(kBatch));
  auto const stream = std::shared_ptr<Stream>(make_compute_stream(test_device(0)));
  nn::Mlp alone(widths, *stream, {.seed = 4});
  nn::Sgd alone_optimizer(alone.weights());
  for (int step = 0; step < 5; ++step) {
    alone.forward({x, y});
    alone.backward();
    alone_optimizer.step();
  }
  auto const expected = values(alone.weights());
  for (std::size_t const n : device_counts()) {
    auto const net = nn::make_mlp_module(widths, stream, {.seed = 4});
    DataParallel parallel(net, {.device_ids = test_devices(n),
                                .loss = [](Module& replica, Value const& logits, Value const& target,
                                           ReplicaShare const& share) -> ReplicaLoss {
                                  nn::SoftmaxCrossEntropy loss{nn::Context(replica.stream())};
                                  loss.forward(logits.view(), target.view(), logits.view(), share.total_rows);
                                  return {Value::other(loss.take_score().loss), logits};
                                }});
    nn::Sgd optimizer(parallel->weights());
    double first = 0;
    double last = 0;
    for (int step = 0; step < 5; ++step) {
      Value const losses = parallel.forward_loss(x, y);
      last = 0;
      for (Value const& each : losses.list()) last += each.other<double>();
      if (step == 0) first = last;
      static_cast<void>(parallel.backward_loss());
      optimizer.step();
    }
    EXPECT_LT(last, first);
    auto const found = values(parallel->weights());
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], 2e-5) << n << " devices, " << i;
  }
  stream->synchronize();
}

TEST(NnModules, P13TheInputsGradientIsThereIfItWasAskedFor) {
  auto const stream = std::shared_ptr<Stream>(make_compute_stream(test_device(0)));
  auto const gradient = [&](bool wanted) {
    auto const net = nn::make_mlp_module({12, 4}, stream, {.input_gradient = wanted});
    DataParallel parallel(net, {.device_ids = test_devices(device_counts().back())});
    static_cast<void>(parallel.forward(tensor_on<float>(Device{}, {5, 12}, pixels(60))));
    Value const found = parallel.backward(counting<float>(test_device(0), {5, 4}));
    stream->synchronize();
    return found;
  };
  EXPECT_TRUE(gradient(false).is_none());
  EXPECT_EQ(gradient(true).view().shape, (Shape{5, 12}));
}

}  // namespace
}  // namespace ddp::testing
