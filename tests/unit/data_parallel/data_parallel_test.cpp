// P1, P5, P7 to P9 and P11 to P13: DataParallel against the oracle, and what it promises around it.
#include "ddp/data_parallel/data_parallel.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "support/errors.hpp"
#include "support/models/data_parallel_oracle.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
class DataParallelOracle : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(DataParallelOracle, Types);

TYPED_TEST(DataParallelOracle, P8P11NDevicesEqualOneOnTheWholeBatch) {
  for (std::size_t const batch : {12, 13, 2}) {
    auto const alone = toy_net<TypeParam>(test_device(0));
    auto const expected = train<TypeParam>(*alone, batch, test_device(0));
    for (std::size_t const n : device_counts()) {
      SCOPED_TRACE(text(n, " devices, batch ", batch));
      DataParallel parallel(toy_net<TypeParam>(test_device(0)), on(test_devices(n)));
      expect_near_all(train<TypeParam>(parallel, batch, test_device(0)), expected);
    }
  }
}

TYPED_TEST(DataParallelOracle, P1InputsMayLieOnAnyDeviceAndP7OutputsToo) {
  if (fewer_devices_than(3)) GTEST_SKIP() << "needs 3 devices";
  auto const alone = toy_net<TypeParam>(test_device(0));
  auto const expected = train<TypeParam>(*alone, 7, test_device(0));
  for (Device const place : {Device{}, test_device(2)}) {
    SCOPED_TRACE(to_string(place));
    DataParallel parallel(toy_net<TypeParam>(test_device(0)),
                          {.device_ids = test_devices(3), .output_device = place});
    expect_near_all(train<TypeParam>(parallel, 7, place), expected);
    EXPECT_EQ(parallel.forward(inputs<TypeParam>(place, 0, 7)).view().device, place);
    parallel.module().stream().synchronize();
  }
}

TYPED_TEST(DataParallelOracle, P8GradientsOfSeveralPassesAddUp) {
  auto const alone = toy_net<TypeParam>(test_device(0));
  auto const expected = train<TypeParam>(*alone, 6, test_device(0), 3);
  for (bool const bindable : {true, false}) {
    DataParallel parallel(toy_net<TypeParam>(test_device(0), 0, bindable),
                          on(test_devices(device_counts().back())));
    expect_near_all(train<TypeParam>(parallel, 6, test_device(0), 3), expected);
  }
}

TYPED_TEST(DataParallelOracle, P12LossOnTheReplicasTrainsAsTheWholeBatch) {
  constexpr std::size_t kBatch = 13;
  auto const alone = toy_net<TypeParam>(test_device(0));
  auto const expected = train<TypeParam>(*alone, kBatch, test_device(0));
  auto const loss = [](Module& replica, Value const& output, Value const& target,
                       ReplicaShare const& share) -> ReplicaLoss {
    EXPECT_EQ(output.view().device, replica.device()) << "an output left its device";
    EXPECT_EQ(target.view().device, replica.device());
    EXPECT_EQ(output.view().shape[0], share.rows);
    auto const y = elements_of<TypeParam>(output.view(), replica.stream());
    auto const t = elements_of<TypeParam>(target.view(), replica.stream());
    TypeParam sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += (y[i] - t[i]) * (y[i] - t[i]) / 2;
    return {
        tensor_on<TypeParam>(replica.device(), Shape{}, {sum / static_cast<TypeParam>(share.total_rows)}),
        squared_error_gradient<TypeParam>(output.view(), target.view(), share.total_rows, replica.stream())};
  };
  for (std::size_t const n : device_counts()) {
    DataParallel parallel(toy_net<TypeParam>(test_device(0)), {.device_ids = test_devices(n), .loss = loss});
    std::vector<double> losses;
    for (std::size_t step = 0; step < kTrainingSteps; ++step) {
      Value const each = parallel.forward_loss(inputs<TypeParam>(Device{}, step * kBatch, kBatch),
                                               targets<TypeParam>(Device{}, step * kBatch, kBatch));
      EXPECT_EQ(each.view().shape.dimensions(), 1U);
      auto const values = elements_of<TypeParam>(each.view(), parallel.module().stream());
      losses.push_back(std::accumulate(values.begin(), values.end(), 0.0));
      static_cast<void>(parallel.backward_loss());
      descend<TypeParam>(parallel, 0.2);
    }
    expect_near_all(all_values<TypeParam>(parallel), expected);
    EXPECT_LT(losses.back(), losses.front()) << n << " devices";
  }
}

TYPED_TEST(DataParallelOracle, P13ABlockBetweenTwoOrdinaryOnesTrainsLikeTheWhole) {
  auto const whole = [](bool wrapped, std::size_t n) {
    std::shared_ptr<Stream> const stream = make_compute_stream(test_device(0));
    auto const layer = [&](std::size_t in, std::size_t out, double seed) {
      return std::make_shared<TanhLayer<TypeParam>>(stream, in, out, seed);
    };
    std::shared_ptr<Module> block = layer(9, 11, 2);
    if (wrapped) block = std::make_shared<DataParallel<Module>>(block, on(test_devices(n)));
    return std::make_shared<Chain>(
        stream, std::vector<std::shared_ptr<Module>>{layer(7, 9, 1), block, layer(11, 3, 3)});
  };
  auto const expected = train<TypeParam>(*whole(false, 1), 10, test_device(0));
  for (std::size_t const n : device_counts()) {
    auto const model = whole(true, n);
    expect_near_all(train<TypeParam>(*model, 10, test_device(0)), expected);
    EXPECT_EQ(model->parameters()[2].name, "part1.weight");
  }
  // And a DataParallel of what holds a DataParallel: the inner one runs alone on each device.
  DataParallel outer(whole(true, device_counts().back()), on(test_devices(device_counts().back())));
  expect_near_all(train<TypeParam>(outer, 10, test_device(0)), expected);
}

TEST(DataParallel, P13BackwardReturnsTheGradientOfTheInputWhereTheInputIs) {
  auto const alone = toy_net<double>(test_device(0));
  static_cast<void>(alone->forward(inputs<double>(test_device(0), 0, 5)));
  auto const gradient = [](Device device) { return counting<double>(device, {5, 3}); };
  auto const expected =
      elements_of<double>(alone->backward(gradient(test_device(0))).view(), alone->stream());
  DataParallel parallel(toy_net<double>(test_device(0)), on(test_devices(device_counts().back())));
  Value const output = parallel.forward(inputs<double>(Device{}, 0, 5));
  Value const found = parallel.backward(gradient(test_device(0)));
  EXPECT_EQ(found.view().device, Device{}) << "the input was in host memory";
  EXPECT_EQ(found.view().shape, (Shape{5, 7}));
  expect_near_all(elements_of<double>(found.view()), expected);
}

TEST(DataParallel, P13EachTensorOfANestedInputHasItsGradientWhereItWas) {
  std::size_t const n = device_counts().back();
  DataParallel parallel(function_module(test_device(0), [](auto&, Value const& input) { return input; }),
                        on(test_devices(n)));
  auto const batch = [n](Device device) { return counting<float>(device, {n, 3}); };
  Value const output = parallel.forward(
      Value::Map{{"a", batch(Device{})}, {"b", Value::List{Value::other(7), batch(test_device(n - 1))}}});
  Value const found = parallel.backward(
      Value::Map{{"a", batch(test_device(0))}, {"b", Value::List{Value(), batch(test_device(0))}}});
  EXPECT_EQ(found["a"].view().device, Device{});
  EXPECT_EQ(found["b"][1].view().device, test_device(n - 1));
  parallel.module().stream().synchronize();
  EXPECT_EQ(elements_of<float>(found["a"].view()), elements_of<float>(batch(Device{})));
  EXPECT_EQ(elements_of<float>(found["b"][1].view()), elements_of<float>(batch(Device{})));
}

TEST(DataParallel, P13AWrapperWithinAReplicaRunsAloneAndGoesBackAsItCame) {
  std::size_t const n = device_counts().back();
  std::mutex mutex;
  std::vector<Device> ran;
  auto const inner =
      std::make_shared<DataParallel<Module>>(function_module(test_device(0),
                                                             [&](Module& self, Value const& input) {
                                                               std::lock_guard const lock(mutex);
                                                               ran.push_back(self.device());
                                                               return input;
                                                             }),
                                             on(test_devices(n)));
  auto const whole =
      std::make_shared<Chain>(inner->shared_stream(), std::vector<std::shared_ptr<Module>>{inner});
  Value const batch(counting<float>(Device{}, {2 * n}));
  static_cast<void>(inner->forward(batch));  // splits; nothing goes back from it any more
  ran.clear();
  DataParallel outer(whole, on(test_devices(n)));
  static_cast<void>(outer.forward(batch));
  std::ranges::sort(ran);
  EXPECT_EQ(ran, test_devices(n));
  EXPECT_TRUE(outer.backward(batch).is_tensor());
  Value const part(counting<float>(test_device(0), {2}));
  EXPECT_EQ(inner->backward(part).view().shape, Shape{2}) << "as the replica's part was";
}

TEST(DataParallel, P12P13AWrapperWithinAReplicaHasItsLossThere) {
  DataParallelOptions options = on(test_devices(1));
  options.loss = [](Module&, Value const& output, Value const& target, ReplicaShare const&) {
    return ReplicaLoss{target, output};
  };
  DataParallel inner(toy_net<float>(test_device(0)), options);
  auto const clone = std::dynamic_pointer_cast<DataParallelModule>(
      inner.clone_to(std::shared_ptr<Stream>(make_compute_stream(test_device(0)))));
  ASSERT_NE(clone, nullptr);
  Value const target(counting<float>(test_device(0), {5}));
  Value const loss = clone->forward_loss(inputs<float>(test_device(0), 0, 5), target);
  EXPECT_EQ(elements_of<float>(loss.view()), elements_of<float>(target.view()));
}

TEST(DataParallel, P8GradientReadyIsCalledOnceForEachParameterAfterTheSum) {
  DataParallel parallel(toy_net<float>(test_device(0)), on(test_devices(device_counts().back())));
  static_cast<void>(parallel.forward(inputs<float>(Device{}, 0, 5)));
  std::vector<std::size_t> ready;
  static_cast<void>(parallel.backward(counting<float>(test_device(0), {5, 3}),
                                      [&](std::size_t parameter) { ready.push_back(parameter); }));
  EXPECT_THAT(ready, ElementsAre(3, 2, 1, 0));
}

TEST(DataParallel, P1AnEmptyListRunsTheModuleItself) {
  auto const module = toy_net<float>(test_device(0));
  DataParallel parallel(module, on({}));
  EXPECT_TRUE(parallel.device_ids().empty());
  auto const expected = train<float>(*toy_net<float>(test_device(0)), 5, test_device(0));
  expect_near_all(train<float>(parallel, 5, test_device(0)), expected);
}

TEST(DataParallel, P1WithoutAGpuAndWithoutAListTheModuleRunsUnchanged) {
  if (!logical_devices().empty()) GTEST_SKIP() << "there are GPUs";
  auto const module = toy_net<float>(test_device(0));
  DataParallel parallel(module);
  EXPECT_TRUE(parallel.device_ids().empty());
  auto const expected = train<float>(*toy_net<float>(test_device(0)), 5, test_device(0));
  EXPECT_EQ(train<float>(parallel, 5, test_device(0)), expected);
}

TEST(DataParallel, P1TheFreeFunctionIsOneForwardPass) {
  auto const module = toy_net<float>(test_device(0));
  auto const expected =
      elements_of<float>(module->forward(inputs<float>(test_device(0), 0, 5)).view(), module->stream());
  Value const found =
      data_parallel(module, inputs<float>(Device{}, 0, 5), on(test_devices(device_counts().back())));
  expect_near_all(elements_of<float>(found.view(), module->stream()), expected);
}

TEST(DataParallel, P5WhatReplica0WritesIntoItsBuffersLastsAndWhatOthersWriteIsLost) {
  auto const module = function_module(test_device(0), [](FunctionModule& self, Value const& input) {
    EXPECT_EQ(self.seen() >= 100.0F, false) << "a replica kept what it had written";
    bool const first = self.device() == test_device(0);
    self.see(first ? self.seen() + 1 : 100.0F);
    return input;
  });
  DataParallel parallel(module, on(test_devices(device_counts().back())));
  for (int step = 1; step <= 3; ++step) {
    static_cast<void>(parallel.forward(counting<float>(Device{}, {8, 2})));
    EXPECT_EQ(parallel->seen(), static_cast<float>(step));
  }
}

TEST(DataParallel, P5ReplicasLiveBetweenSteps) {
  static std::atomic<int> clones{0};
  clones = 0;
  struct Counted final : Module {
    using Module::Module;
    std::vector<Parameter> parameters() override { return {}; }
    Value do_forward(Value const& input) override { return input; }
    Value do_backward(Value const& gradient, GradientReady const&) override { return gradient; }
    std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
      ++clones;
      return std::make_shared<Counted>(std::move(stream));
    }
  };
  std::size_t const n = device_counts().back();
  DataParallel parallel(
      std::make_shared<Counted>(std::shared_ptr<Stream>(make_compute_stream(test_device(0)))),
      on(test_devices(n)));
  for (int step = 0; step < 3; ++step) static_cast<void>(parallel.forward(counting<float>(Device{}, {8, 2})));
  EXPECT_EQ(clones, static_cast<int>(n) - 1);
}

TEST(DataParallel, P9TheModuleStaysReachableWithItsOwnMembers) {
  auto const module = function_module(test_device(0), [](auto&, Value const& input) { return input; });
  DataParallel parallel(module, on(test_devices(1)));
  EXPECT_EQ(&parallel.module(), module.get());
  parallel->see(4.0F);
  EXPECT_EQ(module->seen(), 4.0F);
  EXPECT_EQ(parallel.children().front().module, module.get());
}

TEST(DataParallel, P7AnOutputThatIsHeldStaysAsItIs) {
  DataParallel parallel(function_module(test_device(0), [](auto&, Value const& input) { return input; }),
                        on(test_devices(device_counts().back())));
  Value const first = parallel.forward(counting<float>(Device{}, {4, 1}));
  Value const second = parallel.forward(tensor_on<float>(Device{}, {4, 1}, {9, 9, 9, 9}));
  EXPECT_THAT(elements_of<float>(first.view(), parallel->stream()), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(elements_of<float>(second.view(), parallel->stream()), ElementsAre(9, 9, 9, 9));
}

TEST(DataParallel, P4NestedInputsReachEveryReplicaAndP7NestedOutputsComeBack) {
  DataParallel parallel(function_module(test_device(0),
                                        [](auto&, Value const& input) {
                                          EXPECT_EQ(input["scale"].template other<int>(), 7);
                                          return Value(Value::Map{{"pair", input["pair"]}});
                                        }),
                        on(test_devices(device_counts().back())));
  Value::Map const input{
      {"pair", std::pair(Value(counting<float>(Device{}, {5, 2})), Value(counting<double>(Device{}, {5})))},
      {"scale", Value::other(7)}};
  Value const output = parallel.forward(input);
  EXPECT_THAT(elements_of<float>(output["pair"][0].view(), parallel->stream()),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(elements_of<double>(output["pair"][1].view(), parallel->stream()), ElementsAre(0, 1, 2, 3, 4));
}

TEST(DataParallel, P7ScalarsBecomeAVectorWithOneWarning) {
  std::size_t const n = device_counts().back();
  DataParallel parallel(function_module(test_device(0),
                                        [](FunctionModule& self, Value const& input) -> Value {
                                          float const rows = static_cast<float>(input.view().shape[0]);
                                          return tensor_on<float>(self.device(), Shape{}, {rows});
                                        }),
                        on(test_devices(n)));
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 2; ++step) {
    Value const output = parallel.forward(counting<float>(Device{}, {n * 2, 1}));
    EXPECT_EQ(elements_of<float>(output.view(), parallel->stream()), std::vector<float>(n, 2.0F));
  }
  std::string const said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("every replica returned a scalar"));
  EXPECT_EQ(said.find("scalar;"), said.rfind("scalar;")) << "more than one warning: " << said;
}

}  // namespace
}  // namespace ddp::testing
