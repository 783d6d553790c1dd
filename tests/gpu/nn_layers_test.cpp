// The layers of examples/nn on a GPU, each against its twin on the CPU, in f32 and f64. Sizes are small, so
// that compute-sanitizer can run all of it.
#include <gmock/gmock.h>

#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "data/loader.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "nn/adam.hpp"
#include "nn/mlp.hpp"
#include "nn/relu.hpp"
#include "nn/sgd.hpp"
#include "support/errors.hpp"

namespace nn {
namespace {

using ddp::Shape;
using ddp::Tensor;
using ddp::TensorView;

constexpr ddp::Device kGpu{ddp::DeviceKind::cuda, ddp::DeviceIndex{0}};

// Both sides round each of `terms` partial sums, in different orders. Values lie in ±1, so partial sums are
// of the size sqrt(terms)/3 and independent roundings add up to about terms/3 halves of epsilon: this is six
// times as much.
template <class T>
double rounding(std::size_t terms) {
  return static_cast<double>(std::numeric_limits<T>::epsilon()) * static_cast<double>(terms + 4);
}

template <class T>
class NnOnGpu : public ::testing::Test {
 protected:
  // The same memory twice: with random values in ±1, or zero.
  struct Twins {
    Tensor host;
    Tensor device;
  };
  [[nodiscard]] Twins zeros(Shape const& shape) const {
    return {cpu_.zeros(shape, ddp::dtype_of<T>), gpu_.zeros(shape, ddp::dtype_of<T>)};
  }
  [[nodiscard]] Twins random(Shape const& shape, std::uint64_t stream) const {
    Twins twins = zeros(shape);
    Random const values(9, stream);
    auto const host = twins.host.template as<T>();
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<T>(values.uniform(i, -1, 1));
    gpu_.upload(twins.host, twins.device);
    return twins;
  }
  void expect_equal(TensorView const& host, TensorView const& device, double tolerance,
                    char const* what) const {
    ASSERT_EQ(host.shape, device.shape) << what;
    EXPECT_EQ(device.device, kGpu) << what;
    Tensor const fetched = gpu_.download(device);
    auto const expected = host.as<T>();
    auto const found = fetched.template as<T>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(expected[i], found[i], tolerance * (1 + std::abs(static_cast<double>(expected[i]))))
          << what << ", element " << i << " of " << host.shape;
    }
  }
  void expect_equal(Twins const& twins, double tolerance, char const* what) const {
    expect_equal(twins.host, twins.device, tolerance, what);
  }
  [[nodiscard]] std::pair<TensorView, Tensor> labels(std::size_t count, std::size_t classes) {
    Random const values(10, count);
    auto& host = labels_.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) host[i] = static_cast<std::uint8_t>(values.bits(i) % classes);
    Tensor device = gpu_.zeros({count}, ddp::DType::u8);
    gpu_.upload(ddp::view_of(std::span(host)), device);
    return {ddp::view_of(std::span(host)), device};
  }

  std::unique_ptr<ddp::Stream> stream_ = ddp::make_compute_stream(kGpu);
  Context gpu_{*stream_};
  Context cpu_;
  std::deque<std::vector<std::uint8_t>> labels_;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(NnOnGpu, Types);

TYPED_TEST(NnOnGpu, LinearEqualsItsTwinAndItsGradientsAddUp) {
  struct Size {
    std::size_t samples, in, out;
  };
  for (Size const size : {Size{1, 1, 1}, Size{1, 784, 10}, Size{33, 17, 5}, Size{64, 31, 1}, Size{7, 1, 129},
                          Size{130, 257, 65}, Size{512, 64, 32}, Size{0, 6, 3}}) {
    SCOPED_TRACE(::testing::Message() << size.samples << " samples, " << size.in << " to " << size.out);
    Linear host("fc", size.in, size.out, ddp::dtype_of<TypeParam>, this->cpu_);
    Linear device("fc", size.in, size.out, ddp::dtype_of<TypeParam>, this->gpu_);
    host.initialize(Random(1, 2));
    device.initialize(Random(1, 2));
    this->expect_equal(host.weight.value(), device.weight.value(), 0, "initial weight");
    auto const offsets = this->random({size.out}, 3);
    this->cpu_.upload(offsets.host, host.bias.value());
    this->gpu_.upload(offsets.host, device.bias.value());

    auto const x = this->random({size.samples, size.in}, 4);
    auto const y = this->random({size.samples, size.out}, 5);
    host.forward(x.host, y.host);
    device.forward(x.device, y.device);
    this->expect_equal(y, 3 * rounding<TypeParam>(size.in), "y");

    auto const dy = this->random({size.samples, size.out}, 6);
    auto const dx = this->random({size.samples, size.in}, 7);
    for (int round = 1; round <= 2; ++round) {
      host.backward_weights(x.host, dy.host);
      device.backward_weights(x.device, dy.device);
      auto const tolerance = 2 * rounding<TypeParam>(size.samples);
      this->expect_equal(host.weight.gradient(), device.weight.gradient(), tolerance, "dweight");
      this->expect_equal(host.bias.gradient(), device.bias.gradient(), tolerance, "dbias");
    }
    host.backward_input(dy.host, dx.host);
    device.backward_input(dy.device, dx.device);
    this->expect_equal(dx, 3 * rounding<TypeParam>(size.out), "dx");
  }
}

TYPED_TEST(NnOnGpu, ReluEqualsItsTwinBitByBit) {
  for (std::size_t const count : {0U, 1U, 255U, 257U, 5003U}) {
    auto const y = this->random({count, 3}, 1);
    auto const dy = this->random({count, 3}, 2);
    relu_forward(this->cpu_, y.host);
    relu_forward(this->gpu_, y.device);
    this->expect_equal(y, 0, "y");
    relu_backward(this->cpu_, y.host, dy.host);
    relu_backward(this->gpu_, y.device, dy.device);
    this->expect_equal(dy, 0, "dy");
  }
}

TYPED_TEST(NnOnGpu, SoftmaxCrossEntropyEqualsItsTwinAlsoInPlaceAndAddsScoresUp) {
  struct Size {
    std::size_t samples, classes;
  };
  for (Size const size : {Size{1, 1}, Size{5, 3}, Size{64, 10}, Size{33, 77}, Size{257, 31}, Size{0, 4}}) {
    SCOPED_TRACE(::testing::Message() << size.samples << " samples, " << size.classes << " classes");
    auto const logits = this->random({size.samples, size.classes}, 1);
    auto const slopes = this->zeros({size.samples, size.classes});
    auto const [host_labels, device_labels] = this->labels(size.samples, size.classes);
    SoftmaxCrossEntropy host(this->cpu_);
    SoftmaxCrossEntropy device(this->gpu_);
    host.forward(logits.host, host_labels, slopes.host);
    device.forward(logits.device, device_labels, slopes.device);
    this->expect_equal(slopes, rounding<TypeParam>(size.classes), "dlogits");
    host.forward(logits.host, host_labels, {});
    device.forward(logits.device, device_labels, {});
    host.forward(logits.host, host_labels, logits.host);
    device.forward(logits.device, device_labels, logits.device);
    this->expect_equal(logits, rounding<TypeParam>(size.classes), "dlogits in place of the logits");
    for (int round = 0; round < 2; ++round) {  // the second time nothing is left
      Score const expected = host.take_score();
      Score const found = device.take_score();
      EXPECT_EQ(found.samples, expected.samples);
      EXPECT_EQ(found.correct, expected.correct);
      EXPECT_NEAR(found.loss, expected.loss, rounding<TypeParam>(size.classes) * (1 + expected.loss));
    }
  }
}

TYPED_TEST(NnOnGpu, SoftmaxCrossEntropySurvivesLargeLogitsAndTakesTheFirstOfEquals) {
  std::vector<TypeParam> values{1000, 0, -1000, 2, 2, 1};
  std::vector<std::uint8_t> truth{1, 0};
  Tensor const logits = this->gpu_.zeros({2, 3}, ddp::dtype_of<TypeParam>);
  Tensor const labels = this->gpu_.zeros({2}, ddp::DType::u8);
  this->gpu_.upload(ddp::view_of(std::span(values)), logits);
  this->gpu_.upload(ddp::view_of(std::span(truth)), labels);
  SoftmaxCrossEntropy loss(this->gpu_);
  loss.forward(logits, labels, {});
  Score const score = loss.take_score();
  EXPECT_NEAR(score.loss, 1000 + std::log(2 + std::exp(-1.0)), 1000 * rounding<TypeParam>(3));
  EXPECT_EQ(score.correct, 1U);
}

TYPED_TEST(NnOnGpu, ALabelThatIsNoClassIsToldWhenTheScoreIsTaken) {
  Tensor const logits = this->gpu_.zeros({3, 2}, ddp::dtype_of<TypeParam>);
  Tensor const labels = this->gpu_.zeros({3}, ddp::DType::u8);
  std::vector<std::uint8_t> truth{1, 2, 255};
  this->gpu_.upload(ddp::view_of(std::span(truth)), labels);
  SoftmaxCrossEntropy loss(this->gpu_);
  loss.forward(logits, labels, {});
  EXPECT_THAT(ddp::testing::message_of([&] { static_cast<void>(loss.take_score()); }),
              ::testing::HasSubstr("2 labels are not below the number of classes"));
  EXPECT_EQ(loss.take_score().samples, 0U) << "the error is of those batches alone";
}

TYPED_TEST(NnOnGpu, OptimizersEqualTheirTwinsAndLeaveGradientsZero) {
  auto const check = [&](auto make_optimizer, char const* what) {
    std::deque<Weight> host;
    std::deque<Weight> device;
    std::vector<Weight*> host_list;
    std::vector<Weight*> device_list;
    for (Shape const& shape : {Shape{37}, Shape{1, 1}, Shape{300, 17}}) {
      auto const initial = this->random(shape, 20);
      host_list.push_back(&host.emplace_back("w", shape, ddp::dtype_of<TypeParam>, this->cpu_));
      device_list.push_back(&device.emplace_back("w", shape, ddp::dtype_of<TypeParam>, this->gpu_));
      this->cpu_.upload(initial.host, host.back().value());
      this->gpu_.upload(initial.host, device.back().value());
    }
    auto host_optimizer = make_optimizer(host_list);
    auto device_optimizer = make_optimizer(device_list);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      for (std::size_t i = 0; i < host.size(); ++i) {
        auto const gradient = this->random(host[i].value().shape, 30 * step + i);
        this->cpu_.upload(gradient.host, host[i].gradient());
        this->gpu_.upload(gradient.host, device[i].gradient());
      }
      host_optimizer.step();
      device_optimizer.step();
      for (std::size_t i = 0; i < host.size(); ++i) {
        this->expect_equal(host[i].value(), device[i].value(), rounding<TypeParam>(8 * step), what);
        this->expect_equal(host[i].gradient(), device[i].gradient(), 0, "gradient");
        EXPECT_EQ(host[i].gradient().template as<TypeParam>()[0], 0);
      }
    }
  };
  check([](auto const& weights) { return Sgd(weights, {.learning_rate = 0.05, .momentum = 0.8}); }, "Sgd");
  check([](auto const& weights) { return Adam(weights, {.learning_rate = 0.02, .epsilon = 1e-3}); }, "Adam");
}

TYPED_TEST(NnOnGpu, TwentyStepsOfAnMlpFollowThoseOfTheCpu) {
  constexpr std::size_t kSamples = 65;
  Mlp host({50, 33, 17, 10}, this->cpu_, {.dtype = ddp::dtype_of<TypeParam>, .seed = 4});
  Mlp device({50, 33, 17, 10}, this->gpu_, {.dtype = ddp::dtype_of<TypeParam>, .seed = 4});
  Sgd host_optimizer(host.weights());
  Sgd device_optimizer(device.weights());
  auto const x = this->random({kSamples, 50}, 1);
  auto const [host_labels, device_labels] = this->labels(kSamples, 10);
  double first = 0;
  double last = 0;
  for (int step = 1; step <= 20; ++step) {
    host.forward({x.host, host_labels});
    host.backward();
    device.forward({x.device, device_labels});
    std::vector<std::size_t> order;
    device.backward([&](std::size_t index) { order.push_back(index); });
    EXPECT_EQ(order, (std::vector<std::size_t>{5, 4, 3, 2, 1, 0}));
    // On the CPU, f32 stays within 2e-7 of f64 over these steps: this is forty times as much.
    double const tolerance = rounding<TypeParam>(64);
    for (std::size_t i = 0; i < 6; ++i) {
      this->expect_equal(host.weights()[i]->gradient(), device.weights()[i]->gradient(), tolerance,
                         "gradient");
    }
    host_optimizer.step();
    device_optimizer.step();
    Score const expected = host.take_score();
    Score const found = device.take_score();
    EXPECT_NEAR(found.loss, expected.loss, tolerance * expected.loss) << "step " << step;
    (step == 1 ? first : last) = found.loss;
  }
  EXPECT_LT(last, 0.8 * first) << "it must learn for this to mean anything";
}

TYPED_TEST(NnOnGpu, BatchesMayGrowAndBeEmpty) {
  Mlp host({6, 8, 3}, this->cpu_, {.dtype = ddp::dtype_of<TypeParam>});
  Mlp device({6, 8, 3}, this->gpu_, {.dtype = ddp::dtype_of<TypeParam>});
  for (std::size_t const samples : {0U, 2U, 9U, 0U, 4U}) {
    auto const x = this->random({samples, 6}, samples);
    auto const [host_labels, device_labels] = this->labels(samples, 3);
    host.forward({x.host, host_labels});
    host.backward();
    device.forward({x.device, device_labels});
    std::size_t marked = 0;
    device.backward([&](std::size_t) { ++marked; });
    EXPECT_EQ(marked, 4U);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    this->expect_equal(host.weights()[i]->gradient(), device.weights()[i]->gradient(),
                       rounding<TypeParam>(30), "gradient");
  }
  EXPECT_EQ(device.take_score().samples, 15U);
}

TYPED_TEST(NnOnGpu, ALayerRefusesMemoryOfTheCpu) {
  Linear layer("fc", 3, 2, ddp::dtype_of<TypeParam>, this->gpu_);
  auto const x = this->random({4, 3}, 1);
  auto const y = this->random({4, 2}, 2);
  EXPECT_THAT(ddp::testing::message_of([&] { layer.forward(x.host, y.device); }),
              ::testing::HasSubstr("a layer on cuda:0"));
}

data::ImageSet made_up_images(std::size_t count) {
  data::ImageSet images{3, 7, {}, {}};
  Random const random(5, 5);
  for (std::size_t i = 0; i < count * 21; ++i)
    images.pixels.push_back(static_cast<std::uint8_t>(random.bits(i)));
  for (std::size_t i = 0; i < count; ++i) images.labels.push_back(static_cast<std::uint8_t>(i % 10));
  return images;
}

TEST(LoaderOnGpu, HandsOutTheBatchesOfTheCpuThoughTheHostRunsAhead) {
  auto const stream = ddp::make_compute_stream(kGpu);
  Context const gpu(*stream);
  auto const images = made_up_images(101);
  data::Loader host(images);
  data::Loader device(images, gpu);
  Random const random(6, 6);
  // All batches of the GPU are kept: the host enqueues more than it has slots for before it looks at any.
  std::size_t const batches = 2 * data::Loader::kSlots + 5;
  std::vector<Tensor> inputs;
  std::vector<Tensor> labels;
  auto const indices = [&](std::size_t batch) {
    std::vector<std::size_t> all(batch < 70 ? 4 : 9);  // grows once, with batches under way
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = random.bits(100 * batch + i) % images.size();
    return all;
  };
  for (std::size_t batch = 0; batch < batches; ++batch) {
    Samples const samples = device.load(indices(batch));
    inputs.push_back(gpu.zeros(samples.inputs.shape, ddp::DType::f32));
    labels.push_back(gpu.zeros(samples.labels.shape, ddp::DType::u8));
    ddp::copy_elements(inputs.back(), samples.inputs, *stream);
    ddp::copy_elements(labels.back(), samples.labels, *stream);
  }
  for (std::size_t batch = 0; batch < batches; ++batch) {
    Samples const expected = host.load(indices(batch));
    Tensor const found = gpu.download(inputs[batch]);
    Tensor const found_labels = gpu.download(labels[batch]);
    EXPECT_TRUE(std::ranges::equal(found.as<float>(), expected.inputs.as<float>())) << "batch " << batch;
    EXPECT_TRUE(std::ranges::equal(found_labels.as<std::uint8_t>(), expected.labels.as<std::uint8_t>()))
        << "batch " << batch;
  }
  EXPECT_EQ(device.load(std::span<std::size_t const>()).inputs.shape, (Shape{0, 21}));
}

// Work that takes the GPU some 10 ms.
void keep_busy(Tensor const& memory, ddp::Stream& stream) {
  for (int i = 0; i < 100; ++i) ddp::zero_fill(memory, stream);
}

TEST(ContextOnGpu, MemoryThatGoesWaitsForTheStreamUnlessAnExceptionFlies) {
  auto const stream = ddp::make_compute_stream(kGpu);
  Context const gpu(*stream);
  ddp::Event done(kGpu);
  auto const use = [&] {
    Tensor const memory = gpu.zeros({std::size_t{1} << 28}, ddp::DType::u8);
    keep_busy(memory, *stream);
    done.record(*stream);
    return memory;
  };
  static_cast<void>(use());
  EXPECT_TRUE(done.reached());
  try {
    Tensor const memory = use();
    throw 1;
  } catch (int) {
    EXPECT_FALSE(done.reached()) << "the work might wait for ranks that wait for this one";
  }
  stream->synchronize();
}

TEST(StepOnGpu, TheHostDoesNotWait) {
  auto const stream = ddp::make_compute_stream(kGpu);
  auto const images = made_up_images(64);
  data::Loader loader(images, *stream);
  Mlp net({21, 32, 10}, *stream);
  Adam optimizer(net.weights());
  auto const step = [&] {
    net.forward(loader.load(0, 64));
    net.backward();
    optimizer.step();
  };
  step();  // makes memory and the cuBLAS handle
  Tensor const memory = ddp::zeros({std::size_t{1} << 30}, ddp::DType::u8, kGpu);
  stream->synchronize();
  ddp::Event done(kGpu);
  keep_busy(memory, *stream);
  step();
  done.record(*stream);
  EXPECT_FALSE(done.reached()) << "the host waited for 100 GiB of writes";
  EXPECT_EQ(net.take_score().samples, 128U);
}

}  // namespace
}  // namespace nn
