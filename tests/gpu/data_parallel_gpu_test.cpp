// DataParallel on GPUs: what CPUs cannot show. The suites of tests/unit run here too.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/parallel/data_parallel.hpp"
#include "parallel/replica_set.hpp"
#include "support/errors.hpp"
#include "support/toy_modules.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kLongFill = std::size_t{1} << 30;

std::shared_ptr<FunctionModule> identity() {
  return function_module(test_device(0), [](auto&, Value const& input) { return input; });
}

TEST(GpuDataParallel, P1WithoutAListEveryLogicalGpuHasAReplica) {
  DataParallel parallel(identity());
  EXPECT_EQ(parallel.device_ids().size(), logical_devices().size());
}

TEST(GpuDataParallel, P8NcclCarriesBetweenCardsAndHostMemoryWhereOneIsShared) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  ReplicaSet const replicas(identity(), test_devices(test_device_count()), std::chrono::minutes(1));
  bool const shared = logical_device(test_device(0)).uuid == logical_device(test_device(1)).uuid;
  EXPECT_EQ(replicas.backend(), shared ? "staged" : "nccl");
}

TEST(GpuDataParallel, P14ARealCaptureIsRefused) {
  auto const module = identity();
  DataParallel parallel(module);
  Tensor const input = counting<float>(test_device(0), {8});
  cudaStream_t const stream = cuda_stream(module->stream()).handle();
  ASSERT_EQ(cudaSetDevice(logical_device(test_device(0)).visible), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::string const said = message_of([&] { static_cast<void>(parallel.forward(input)); });
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_THAT(said, HasSubstr("cannot be captured into a CUDA graph"));
  EXPECT_TRUE(parallel.forward(input).is_tensor()) << "the next step works";
  module->stream().synchronize();
}

// Every replica's work is on its own stream, and nobody waits for it on the host.
TEST(GpuDataParallel, ForwardAndBackwardReturnBeforeTheGpusAreDone) {
  struct Slow final : Module {
    explicit Slow(std::shared_ptr<Stream> stream)
        : Module(std::move(stream)), scratch(zeros(Shape{kLongFill}, DType::u8, device())) {}
    std::vector<Parameter> parameters() override { return {}; }
    Value work(Value const& passed) {
      for (int i = 0; i < 100; ++i) zero_fill(scratch, stream());
      return passed;
    }
    Value do_forward(Value const& input) override { return work(input); }
    Value do_backward(Value const& gradient, GradientReady const&) override { return work(gradient); }
    std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
      return std::make_shared<Slow>(std::move(stream));
    }
    Tensor scratch;
  };
  std::size_t const n = test_device_count();
  auto const module = std::make_shared<Slow>(std::shared_ptr<Stream>(make_compute_stream(test_device(0))));
  DataParallel parallel(module, {.device_ids = test_devices(n)});
  Tensor const input = counting<float>(test_device(0), {4 * n, 2});
  Event done(test_device(0));
  for (int step = 0; step < 2; ++step) {  // the first one makes memory
    Value const output = parallel.forward(input);
    Value const gradient = parallel.backward(output);
    DeviceGuard const guard(test_device(0));
    done.record(module->stream());
    EXPECT_FALSE(step == 1 && done.reached()) << "the host waited in the step";
    EXPECT_EQ(elements_of<float>(gradient.view(), module->stream()), elements_of<float>(input));
    EXPECT_TRUE(done.reached());
  }
}

}  // namespace
}  // namespace ddp::testing
