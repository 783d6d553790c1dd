// P2, P3, P6, P10 and P14: what DataParallel refuses and warns of, word for word.
#include <gmock/gmock.h>

#include <stdexcept>

#include "data_parallel/replicas/replica_devices.hpp"
#include "ddp/core/text.hpp"
#include "ddp/data_parallel/data_parallel.hpp"
#include "ddp/device/device_placement.hpp"
#include "support/errors.hpp"
#include "support/models/data_parallel_oracle.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::shared_ptr<FunctionModule> identity(Device device) {
  return function_module(device, [](auto&, Value const& input) { return input; });
}

template <class Function>
std::string refusal(Function const& function) {
  auto const error = error_of<Error>(function);
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  return error.what();
}

TEST(DataParallelErrors, P2NamesWhatLiesElsewhereAndSaysWhatToDo) {
  if (fewer_devices_than(3)) GTEST_SKIP() << "needs 3 devices";
  auto const net = toy_net<float>(test_device(0));
  std::string const found =
      text("module must have its parameters and buffers on device ", test_device(1),
           " (device_ids[0]) but found parameter \"part0.weight\" on device ", test_device(0));
  EXPECT_EQ(refusal([&] {
              DataParallel parallel(net, on({test_device(1), test_device(0)}));
            }),
            text(found, "; put ", test_device(0), " first in device_ids"));
  EXPECT_EQ(
      refusal([&] {
        DataParallel parallel(net, on({test_device(1), test_device(2)}));
      }),
      text(found, "; the module's device ", test_device(0), " is not among device_ids (", test_device(1),
           ", ", test_device(2), "): put it first there, or make the module on ", test_device(1)));
  EXPECT_THAT(refusal([&] { DataParallel parallel(identity(test_device(0)), on({test_device(1)})); }),
              HasSubstr(text("but found buffer \"seen\" on device ", test_device(0))));
}

TEST(DataParallelErrors, P3IdsThatAreNotThereAreRefusedWhole) {
  auto const beyond = test_device(test_device_count());
  auto const error = error_of<Error>([&] {
    DataParallel parallel(identity(test_device(0)), on({test_device(0), beyond}));
  });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), StartsWith(text("invalid device id ", test_device_count())));
  EXPECT_THAT(refusal([&] {
                DataParallel parallel(identity(test_device(0)), on({test_device(0), test_device(0)}));
              }),
              HasSubstr(text("device_ids names ", test_device(0), " twice")));
  EXPECT_EQ(error_of<Error>([&] {
              DataParallel parallel(identity(test_device(0)),
                                    {.device_ids = test_devices(1), .output_device = beyond});
            }).code(),
            ErrorCode::not_found);
  std::vector<Device> const mixed{Device{DeviceKind::cuda, DeviceIndex{0}}, Device{}};
  if (test_device_kind() == DeviceKind::cuda) {
    EXPECT_THAT(refusal([&] { check_devices(mixed); }), HasSubstr("GPUs only, or CPUs only"));
  }
}

TEST(DataParallelErrors, D12ThePlacementLogNamesEveryReplicasTensors) {
  std::size_t const n = device_counts().back();
  ::testing::internal::CaptureStderr();
  set_log_device_placement(true);
  { DataParallel parallel(identity(test_device(0)), on(test_devices(n))); }
  set_log_device_placement(false);
  std::string const said = ::testing::internal::GetCapturedStderr();
  for (std::size_t i = 0; i < n; ++i) EXPECT_THAT(said, HasSubstr(text("replica ", i, ": buffer seen")));
  ::testing::internal::CaptureStderr();
  set_log_device_placement(true);
  { DataParallel alone(identity(test_device(0)), on({})); }
  set_log_device_placement(false);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("buffer seen"));
}

TEST(DataParallelErrors, P6AReplicasErrorNamesItAndTheNextStepWorks) {
  for (std::size_t const n : device_counts()) {
    std::size_t const broken = n - 1;
    bool fail = true;
    DataParallel parallel(function_module(test_device(0),
                                          [&](FunctionModule& self, Value const& input) {
                                            if (fail && self.device() == test_device(broken))
                                              throw std::runtime_error("no such word: 50257");
                                            return input;
                                          }),
                          on(test_devices(n)));
    Value const input(counting<float>(Device{}, {2 * n}));
    EXPECT_EQ(message_of([&] { static_cast<void>(parallel.forward(input)); }),
              text("replica ", broken, " on ", test_device(broken), ": no such word: 50257"));
    EXPECT_THAT(message_of([&] { static_cast<void>(parallel.backward(input)); }),
                HasSubstr("backward() comes after a forward() that succeeded"));
    fail = false;
    Value const output = parallel.forward(input);
    EXPECT_EQ(elements_of<float>(output.view(), parallel->stream()), elements_of<float>(input.view()));
  }
}

TEST(DataParallelErrors, P13InputGradientsThatDoNotFitAreNamedAsSuch) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  DataParallel parallel(
      identity(test_device(0)),
      {.device_ids = test_devices(2), .loss = [](Module& self, auto const&, auto const&, auto const& share) {
         return ReplicaLoss{zeros(Shape{}, DType::f32, self.device()),
                            zeros(Shape{1, 3 + share.replica}, DType::f32, self.device())};
       }});
  Value const batch(counting<float>(Device{}, {2, 3}));
  static_cast<void>(parallel.forward_loss(batch, {}));
  EXPECT_THAT(message_of([&] { static_cast<void>(parallel.backward_loss()); }),
              HasSubstr("gather: the gradient of the input of replica 1 is f32[1,4]"));
}

TEST(DataParallelErrors, P6AnErrorInBackwardLeavesNobodyWaiting) {
  std::size_t const n = device_counts().back();
  auto const module = toy_net<double>(test_device(0));
  bool fail = true;
  module->add_after_backward([&](Module& replica, Value const&, Value&) {
    if (fail && replica.device() == test_device(n - 1)) throw std::runtime_error("overflow");
  });
  DataParallel parallel(module, on(test_devices(n)));
  static_cast<void>(parallel.forward(inputs<double>(Device{}, 0, 2 * n)));
  Tensor const gradient = counting<double>(test_device(0), {2 * n, 3});
  EXPECT_EQ(message_of([&] { static_cast<void>(parallel.backward(gradient)); }),
            text("replica ", n - 1, " on ", test_device(n - 1), ": overflow"));
  fail = false;
  for (Parameter const& parameter : module->parameters()) zero_fill(parameter.gradient, module->stream());
  auto const expected = train<double>(*toy_net<double>(test_device(0)), 2 * n, test_device(0));
  expect_near_all(train<double>(parallel, 2 * n, test_device(0)), expected);
}

TEST(DataParallelErrors, P7OutputsThatDifferNameTheReplica) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  DataParallel parallel(function_module(test_device(0),
                                        [](FunctionModule& self, Value const&) {
                                          auto const width =
                                              static_cast<std::size_t>(self.device().index.value()) + 2;
                                          return Value(counting<float>(self.device(), {1, width}));
                                        }),
                        on(test_devices(2)));
  EXPECT_EQ(refusal([&] { static_cast<void>(parallel.forward(counting<float>(Device{}, {2}))); }),
            text("gather: the output of replica 1 is f32[1,3] on ", test_device(1),
                 ", that of replica 0 is f32[1,2] on ", test_device(0),
                 "; dtypes must be equal, and all extents but the one along dimension 0"));
}

TEST(DataParallelErrors, GradientsAndTargetsThatDoNotFitAreRefused) {
  DataParallel parallel(
      identity(test_device(0)),
      {.device_ids = test_devices(1), .loss = [](auto&, auto const& output, auto const&, auto const&) {
         return ReplicaLoss{output, output};
       }});
  static_cast<void>(parallel.forward(counting<float>(test_device(0), {4, 2})));
  EXPECT_EQ(refusal([&] {
              static_cast<void>(parallel.backward(counting<float>(test_device(0), {2, 4})));
            }),
            text("backward: the gradient of the output is f32[2,4] on ", test_device(0),
                 ", expected f32[4,2], as the output was gathered"));
  EXPECT_THAT(refusal([&] { static_cast<void>(parallel.backward(Value::List{})); }),
              HasSubstr("a gradient has the structure of its output"));
  EXPECT_THAT(message_of([&] { static_cast<void>(parallel.backward_loss()); }),
              HasSubstr("backward_loss() comes after"));
  DataParallel without(identity(test_device(0)), on(test_devices(1)));
  EXPECT_THAT(message_of([&] { static_cast<void>(without.forward_loss(Value(), Value())); }),
              HasSubstr("needs DataParallelOptions::loss"));
}

// A stream that says that it is captured, and nothing else.
class CapturingStream final : public Stream {
 public:
  [[nodiscard]] Device device() const noexcept override { return {}; }
  void wait(Stream&) override {}
  void synchronize() override {}
  void block(HostStream&) override {}
  [[nodiscard]] bool is_capturing() const override { return capturing; }
  bool capturing = false;
};

TEST(DataParallelErrors, P14ACaptureIsRefusedBeforeAnythingIsEnqueued) {
  struct Nothing final : Module {
    using Module::Module;
    std::vector<Parameter> parameters() override { return {}; }
    Value do_forward(Value const& input) override { return input; }
    Value do_backward(Value const& gradient, GradientReady const&) override { return gradient; }
    std::shared_ptr<Module> do_clone(std::shared_ptr<Stream>) override { return nullptr; }
  };
  auto const stream = std::make_shared<CapturingStream>();
  DataParallel parallel(std::make_shared<Nothing>(stream), on({Device{}}));
  stream->capturing = true;
  auto const error = error_of([&] { static_cast<void>(parallel.forward(counting<float>(Device{}, {2}))); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("cannot be captured into a CUDA graph"));
  stream->capturing = false;
  EXPECT_TRUE(parallel.forward(counting<float>(Device{}, {2})).is_tensor());
}

}  // namespace
}  // namespace ddp::testing
