// P5 and P6: replicate and parallel_apply.
#include "ddp/data_parallel/replicate.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <exception>
#include <set>
#include <stdexcept>
#include <thread>

#include "ddp/core/text.hpp"
#include "ddp/data_parallel/parallel_apply.hpp"
#include "ddp/data_parallel/scatter.hpp"
#include "ddp/device/device_placement.hpp"
#include "ddp/device/queries.hpp"
#include "support/errors.hpp"
#include "support/models/toy_modules.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::size_t most() { return device_counts().back(); }

TEST(Replicate, P5Replica0IsTheModuleAndTheOthersHaveItsValues) {
  auto const module = toy_net<double>(test_device(0), 3.0);
  auto const replicas = replicate(module, test_devices(most()));
  ASSERT_EQ(replicas.size(), most());
  EXPECT_EQ(replicas[0], module);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    EXPECT_EQ(replicas[i]->device(), test_device(i));
    auto const expected = module->parameters();
    auto const found = replicas[i]->parameters();
    for (std::size_t p = 0; p < expected.size(); ++p) {
      EXPECT_EQ(found[p].name, expected[p].name);
      EXPECT_EQ(found[p].value.device, test_device(i));
      EXPECT_EQ(elements_of<double>(found[p].value), elements_of<double>(expected[p].value));
    }
  }
}

TEST(Replicate, D5AModuleGoesToAnotherDeviceWithItsValuesAndHooks) {
  auto const module = toy_net<float>(test_device(0), 2.0);
  int calls = 0;
  module->add_before_forward([&](Module&, Value&) { ++calls; });
  for (Device const device : {Device{}, test_device(most() - 1)}) {
    auto const copy = module->to(device);
    EXPECT_EQ(copy->device(), device);
    auto const expected = module->parameters();
    auto const found = copy->parameters();
    for (std::size_t p = 0; p < expected.size(); ++p) {
      EXPECT_NE(found[p].value.data, expected[p].value.data);
      EXPECT_EQ(elements_of<float>(found[p].value), elements_of<float>(expected[p].value));
    }
    static_cast<void>(copy->forward(counting<float>(device, {1, 7})));
  }
  EXPECT_EQ(calls, 2);
}

TEST(Replicate, D12AModuleGoesToADeviceThatIsThereWithSoftPlacement) {
  auto const module = toy_net<float>(test_device(0), 2.0);
  Device const nowhere{DeviceKind::cuda, DeviceIndex{99}};
  EXPECT_EQ(error_of<Error>([&] { static_cast<void>(module->to(nowhere)); }).code(), ErrorCode::not_found);
  set_soft_placement(true);
  auto const copy = module->to(nowhere);
  set_soft_placement(false);
  EXPECT_EQ(copy->device(), Device{});
  EXPECT_EQ(elements_of<float>(copy->parameters()[0].value),
            elements_of<float>(module->parameters()[0].value));
}

TEST(Replicate, P5AModuleWhoseCloneIsOfAnotherShapeIsRefused) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  struct Odd final : Module {
    explicit Odd(std::shared_ptr<Stream> stream, std::size_t count)
        : Module(std::move(stream)), memory(zeros(Shape{count}, DType::f32, device())) {}
    std::vector<Parameter> parameters() override { return {{"p", memory, nullptr, memory}}; }
    Value do_forward(Value const& input) override { return input; }
    Value do_backward(Value const& gradient, GradientReady const&) override { return gradient; }
    std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
      return std::make_shared<Odd>(std::move(stream), memory.view().count() + 1);
    }
    Tensor memory;
  };
  auto const module = std::make_shared<Odd>(std::shared_ptr<Stream>(make_compute_stream(test_device(0))), 4);
  EXPECT_THAT(
      message_of([&] { static_cast<void>(replicate(module, test_devices(2))); }),
      HasSubstr(text("parameter or buffer 0 of the module's clone on ", test_device(1), " is f32[5] on ",
                     test_device(1), ", that of the module is f32[4] on ", test_device(0))));
}

TEST(ParallelApply, P6EachReplicaHasAThreadAndItsDevice) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  auto const module = function_module(test_device(0), [&](FunctionModule& self, Value const& input) {
    std::lock_guard const lock(mutex);
    threads.insert(std::this_thread::get_id());
    EXPECT_EQ(input.view().device, self.device());
    EXPECT_EQ(current_device(), self.device());
    return Value(tensor_on<float>(self.device(), {1}, {static_cast<float>(self.device().index.value())}));
  });
  auto const devices = test_devices(most());
  auto const replicas = replicate(module, devices);
  auto const outputs =
      parallel_apply(replicas, scatter(counting<float>(Device{}, {most()}), devices), devices);
  EXPECT_EQ(threads.size(), most());
  for (std::size_t i = 0; i < most(); ++i)
    EXPECT_THAT(elements_of<float>(outputs[i].view()), ElementsAre(static_cast<float>(i)));
}

TEST(ParallelApply, P6TheLowestIndexWinsAfterAllThreadsHaveEnded) {
  if (fewer_devices_than(3)) GTEST_SKIP() << "needs 3 devices";
  std::atomic<int> ended{0};
  auto const module = function_module(test_device(0), [&](FunctionModule& self, Value const& input) -> Value {
    int const index = self.device().index.value();
    if (index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++ended;
    if (index > 0) throw std::runtime_error(text("broken on ", index));
    return input;
  });
  auto const devices = test_devices(3);
  auto const replicas = replicate(module, devices);
  auto const inputs = scatter(counting<float>(Device{}, {3}), devices);
  try {
    static_cast<void>(parallel_apply(replicas, inputs, devices));
    FAIL() << "no error";
  } catch (Error const& error) {
    EXPECT_EQ(ended, 3);
    EXPECT_EQ(error.what(), text("replica 1 on ", test_device(1), ": broken on 1"));
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error) << "the original is kept";
  }
}

TEST(ParallelApply, P6ErrorsKeepTheirKind) {
  auto const apply = [](auto thrown) {
    auto const module =
        function_module(test_device(0), [thrown](auto&, Value const&) -> Value { throw thrown; });
    std::vector<std::shared_ptr<Module>> const replicas{module};
    static_cast<void>(parallel_apply(replicas, std::vector<Value>(1), test_devices(1)));
  };
  EXPECT_EQ(error_of<CommError>([&] { apply(CommError(ErrorCode::timeout, "late")); }).code(),
            ErrorCode::timeout);
  auto const error = error_of<Error>([&] { apply(Error(ErrorCode::not_found, "no file")); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_EQ(error.what(), text("replica 0 on ", test_device(0), ": no file"));
  EXPECT_EQ(error_of<Error>([&] { apply(std::bad_alloc()); }).code(), ErrorCode::out_of_memory);
  EXPECT_THAT(message_of([&] { apply(3); }), HasSubstr("no std::exception"));
}

TEST(ParallelApply, ListsThatDoNotFitAreRefused) {
  auto const module = function_module(test_device(0), [](auto&, Value const& input) { return input; });
  std::vector<std::shared_ptr<Module>> const replicas{module};
  EXPECT_THAT(message_of([&] { static_cast<void>(parallel_apply(replicas, {}, test_devices(1))); }),
              HasSubstr("found 1 replicas, 0 inputs and 1 devices"));
  if (fewer_devices_than(2)) GTEST_SKIP() << "the rest needs 2 devices";
  std::vector<Device> const other{test_device(1)};
  EXPECT_THAT(message_of([&] { static_cast<void>(parallel_apply(replicas, std::vector<Value>(1), other)); }),
              HasSubstr(text("replica 0 is on ", test_device(0), ", expected one on ", test_device(1))));
}

}  // namespace
}  // namespace ddp::testing
