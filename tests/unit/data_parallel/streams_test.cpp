// DataParallel on streams of the CPU that are no calling threads (P6, P7).
#include <gmock/gmock.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "ddp/data_parallel/data_parallel.hpp"
#include "support/errors.hpp"
#include "support/models/data_parallel_oracle.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// A function; one parameter without elements of interest.
class StreamModule final : public Module {
 public:
  using Function = std::function<Value(Module& self, Value const& input)>;
  StreamModule(std::shared_ptr<Stream> stream, Function function, std::shared_ptr<Stream> of_clone = nullptr)
      : Module(std::move(stream)),
        function_(std::move(function)),
        of_clone_(std::move(of_clone)),
        value_(zeros(Shape{1}, DType::f32, device())),
        gradient_(zeros(Shape{1}, DType::f32, device())) {}
  [[nodiscard]] std::vector<Parameter> parameters() override { return {{"w", value_, {}, gradient_}}; }

 protected:
  Value do_forward(Value const& input) override { return function_(*this, input); }
  Value do_backward(Value const& gradient, GradientReady const&) override { return gradient; }
  [[nodiscard]] std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
    return std::make_shared<StreamModule>(of_clone_ ? of_clone_ : std::move(stream), function_);
  }

 private:
  Function function_;
  std::shared_ptr<Stream> of_clone_;
  Tensor value_;
  Tensor gradient_;
};

TEST(DataParallelStreams, P7AnOutputInHostMemoryIsThereThoughTheModulesStreamIsAThread) {
  for (std::size_t const n : {1, 2}) {
    Tensor const slow = zeros(Shape{4}, DType::f32, Device{});
    auto const stream = std::make_shared<HostStream>();
    DataParallel parallel(
        std::make_shared<StreamModule>(stream,
                                       [&](Module& self, Value const& input) -> Value {
                                         if (&self.stream() != stream.get()) return input;
                                         auto* const to = static_cast<float*>(slow.view().data);
                                         stream->enqueue([to] {
                                           std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                           for (int i = 0; i < 4; ++i) to[i] = 3;
                                         });
                                         return slow;
                                       }),
        {.device_ids = test_devices(n)});
    Value const output = parallel.forward(tensor_on<float>(Device{}, {4 * n}, std::vector<float>(4 * n, 3)));
    EXPECT_THAT(output.view().as<float>(), Each(3.0F)) << n;
  }
}

// Counts; can hold no work.
class CountingStream final : public Stream {
 public:
  explicit CountingStream(Device device) : device_(device) {}
  [[nodiscard]] Device device() const noexcept override { return device_; }
  void wait(Stream&) override { ++waits; }
  void synchronize() override {}
  void block(HostStream&) override {}
  int waits = 0;

 private:
  Device device_;
};

TEST(DataParallelStreams, P6WhatAFailedPassHasEnqueuedIsInFrontOfWhatTheProgramDoesNext) {
  struct Nothing final : Module {
    using Module::Module;
    std::vector<Parameter> parameters() override { return {}; }
    Value do_forward(Value const& input) override {
      if (device() == test_device(1)) throw std::runtime_error("no");
      return input;
    }
    Value do_backward(Value const& gradient, GradientReady const&) override { return gradient; }
    std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
      return std::make_shared<Nothing>(std::move(stream));
    }
  };
  auto const stream = std::make_shared<CountingStream>(test_device(0));
  DataParallel parallel(std::make_shared<Nothing>(stream), {.device_ids = test_devices(3)});
  EXPECT_THAT(message_of([&] { static_cast<void>(parallel.forward(counting<float>(Device{}, {6}))); }),
              HasSubstr("replica 1 on cpu:1: no"));
  EXPECT_EQ(stream->waits, 2) << "for each of the other replicas";
}

TEST(DataParallelStreams, P6AReplicaThatCannotEnqueueLeavesNobodyWaiting) {
  DataParallel parallel(
      std::make_shared<StreamModule>(
          make_compute_stream(test_device(0)), [](Module&, Value const& input) { return input; },
          std::make_shared<CountingStream>(test_device(1))),
      {.device_ids = test_devices(2), .timeout = std::chrono::seconds(30)});
  auto const error =
      error_of<CommError>([&] { static_cast<void>(parallel.forward(counting<float>(Device{}, {4}))); });
  EXPECT_EQ(error.code(), ErrorCode::aborted) << error.what();
  EXPECT_THAT(error.what(), AllOf(HasSubstr("replica 1 failed"), HasSubstr("expected a stream of the CPU")));
}

TEST(DataParallelStreams, P8AGradientOfNoParameterIsRefused) {
  struct Miscounts final : Module {
    explicit Miscounts(std::shared_ptr<Stream> stream)
        : Module(std::move(stream)),
          value(zeros(Shape{2}, DType::f32, device())),
          gradient(zeros(Shape{2}, DType::f32, device())) {}
    std::vector<Parameter> parameters() override { return {{"w", value, {}, gradient}}; }
    Value do_forward(Value const& input) override { return input; }
    Value do_backward(Value const& output_gradient, GradientReady const& ready) override {
      gradient.view().as<float>()[0] += 1;
      ready(0);
      ready(1);
      return output_gradient;
    }
    std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> of) override {
      return std::make_shared<Miscounts>(std::move(of));
    }
    Tensor value;
    Tensor gradient;
  };
  for (std::size_t const n : {1, 2}) {
    auto const module = std::make_shared<Miscounts>(make_compute_stream(test_device(0)));
    DataParallel parallel(module, {.device_ids = test_devices(n)});
    Value const output = parallel.forward(counting<float>(Device{}, {n}));
    EXPECT_THAT(
        message_of([&] { static_cast<void>(parallel.backward(output)); }),
        AllOf(HasSubstr("replica 0 on cpu:0: backward() says that the gradient of parameter 1 is ready"),
              HasSubstr("the module has 1 parameters")));
  }
}

}  // namespace
}  // namespace ddp::testing
