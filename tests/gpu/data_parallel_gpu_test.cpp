// DataParallel on GPUs: what CPUs cannot show. The suites of tests/unit run here too.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <span>

#include "data_parallel/replicas/replica_set.hpp"
#include "ddp/comm/factory.hpp"
#include "ddp/data_parallel/data_parallel.hpp"
#include "ddp/data_parallel/gather.hpp"
#include "ddp/data_parallel/scatter.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/parallel/world.hpp"
#include "support/contract/contract_memory.hpp"
#include "support/devices/gate.hpp"
#include "support/errors.hpp"
#include "support/models/toy_modules.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kLongFill = std::size_t{1} << 30;

std::shared_ptr<FunctionModule> identity() {
  return function_module(test_device(0), [](auto&, Value const& input) { return input; });
}

TEST(GpuDataParallel, P1WithoutAListEveryLogicalGpuHasAReplica) {
  DataParallel parallel(identity());
  EXPECT_EQ(parallel.device_ids().size(), logical_devices().size());
}

TEST(GpuDataParallel, P8NcclCarriesBetweenCardsAndCopiesWhereOneIsShared) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  ReplicaSet const replicas(identity(), test_devices(test_device_count()), std::chrono::minutes(1));
  bool const shared = logical_device(test_device(0)).uuid == logical_device(test_device(1)).uuid;
  EXPECT_EQ(replicas.backend(), shared ? "direct" : "nccl");
}

// NCCL's interface is that of the first communicator, so none is chosen for it that others could not use.
TEST(GpuDataParallel, NcclsVariablesAreAsTheyWereAndAWorldCanFollow) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  if (!cards_in_common(test_devices(2)).empty()) GTEST_SKIP() << "needs 2 cards";
  auto const variable = [] {
    char const* const value = std::getenv("NCCL_SOCKET_IFNAME");
    return std::string(value == nullptr ? "unset" : value);
  };
  std::string const before = variable();
  {
    ReplicaSet const replicas(identity(), test_devices(2), std::chrono::minutes(1));
    EXPECT_EQ(replicas.backend(), "nccl");
    EXPECT_EQ(variable(), before);
  }
  World const world = World::init();
  auto const comm = make_communicator(world.shared_control(), world.device(), {.backend = "nccl"});
  Elements<float> const values(*comm, 10, 3.0F);
  comm->all_reduce(values.put(world.stream()), ReduceOp::average(), world.stream());
  EXPECT_EQ(values.fetch(world.stream())[9], 3.0F);
  EXPECT_EQ(variable(), before);
}

TEST(GpuDataParallel, RanksThatAreThreadsAndShareACardAreRefused) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  if (cards_in_common(test_devices(2)).empty()) GTEST_SKIP() << "needs 2 devices of one card";
  auto const control = make_in_process_control(2);
  run_ranks(2, [&](int rank) {
    auto const index = static_cast<std::size_t>(rank);
    auto const error =
        error_of<Error>([&] { static_cast<void>(make_communicator(control[index], test_device(index))); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ranks 0, 1 share GPU "), HasSubstr("use DataParallel")));
  });
}

TEST(GpuDataParallel, P14ARealCaptureIsRefused) {
  auto const module = identity();
  DataParallel parallel(module);
  Tensor const input = counting<float>(test_device(0), {8});
  static_cast<void>(parallel.forward(input));  // what it was given is kept
  module->stream().synchronize();
  cudaStream_t const stream = cuda_stream(module->stream()).handle();
  ASSERT_EQ(cudaSetDevice(logical_device(test_device(0)).visible.value()), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::string const said = message_of([&] { static_cast<void>(parallel.forward(input)); });
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_THAT(said, HasSubstr("cannot be captured into a CUDA graph"));
  EXPECT_TRUE(parallel.forward(input).is_tensor()) << "the next step works";
  module->stream().synchronize();
}

TEST(GpuDataParallel, P4P7TensorsOfAGpuAreSplitToTheCpuAndPutTogetherThere) {
  Tensor const input = counting<float>(test_device(0), {6});
  Device const cpu{};
  auto const parts = scatter(input, std::vector<Device>{cpu}, 0);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].view().device, cpu);
  EXPECT_EQ(elements_of<float>(parts[0].view()), elements_of<float>(input.view()));
  Value const together = gather(std::vector<Value>{Value(input), parts[0]}, cpu, 0);
  EXPECT_EQ(together.view().device, cpu);
  EXPECT_EQ(together.view().shape, Shape{12});
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

// Takes memory that was freed, and overwrites it without a wait for the GPU's other work.
class Squatter {
 public:
  static constexpr std::size_t kElements = 2;
  explicit Squatter(std::size_t devices) {
    for (Device const device : test_devices(devices)) {
      streams_.push_back(make_comm_stream(device));
      sevens_.push_back(tensor_on<float>(device, {kElements}, std::vector<float>(kElements, 7)));
    }
  }
  void take(int times) {
    for (std::size_t d = 0; d < streams_.size(); ++d) {
      for (int i = 0; i < times; ++i) {
        taken_.push_back(zeros(Shape{kElements}, DType::f32, test_device(d)));
        copy_elements(taken_.back(), sevens_[d], *streams_[d]);
      }
    }
  }
  void expect_sevens() const {
    for (auto const& stream : streams_) stream->synchronize();
    for (Tensor const& each : taken_) ASSERT_THAT(elements_of<float>(each), Each(7.0F));
  }

 private:
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Tensor> sevens_;
  std::vector<Tensor> taken_;
};

// What only DataParallel still holds is there until the GPUs are through with it: they are late.
TEST(GpuDataParallel, P12WhatThePassWasGivenStaysUntilTheGpusAreThroughWithIt) {
  std::size_t const n = test_device_count();
  std::vector<Tensor> scratch;
  for (Device const device : test_devices(n)) scratch.push_back(zeros(Shape{kLongFill}, DType::u8, device));
  auto const late = [&](Module& self) {
    for (std::size_t i = 0; i < 100 * n; ++i) zero_fill(scratch[self.device().index.value()], self.stream());
  };
  std::size_t pass = 0;
  constexpr std::size_t kPasses = 3;
  std::vector<std::vector<Tensor>> outputs(kPasses);  // by replica
  for (auto& of_pass : outputs) {
    for (Device const device : test_devices(n)) of_pass.push_back(zeros(Shape{2}, DType::f32, device));
  }
  DataParallel parallel(function_module(test_device(0),
                                        [&](Module& self, Value const& input) -> Value {
                                          late(self);
                                          Tensor const& output = outputs[pass][self.device().index.value()];
                                          copy_elements(output, slice(input.view(), 0, 2), self.stream());
                                          return output;
                                        }),
                        {.device_ids = test_devices(n),
                         .loss = [&](Module& self, auto const& output, Value const& target, auto const&) {
                           Tensor const loss = zeros(Shape{2}, DType::f32, self.device());
                           Tensor const gradient = zeros(Shape{2}, DType::f32, self.device());
                           copy_elements(loss, slice(target.view(), 0, 2), self.stream());
                           copy_elements(gradient, output.view(), self.stream());
                           late(self);
                           return ReplicaLoss{loss, gradient};
                         }});
  std::vector<std::vector<Tensor>> batches;  // each goes when the pass has been given it
  for (std::size_t i = 0; i < kPasses; ++i) {
    batches.emplace_back();
    for (float const all : {1.0F, 2.0F})
      batches.back().push_back(tensor_on<float>(test_device(0), {2 * n}, std::vector<float>(2 * n, all)));
  }
  Squatter squatter(n);
  squatter.take(64);  // what was free before
  std::vector<Value> results;
  for (; pass < kPasses; ++pass) {
    results.push_back(parallel.forward_loss(batches[pass][0], batches[pass][1]));
    batches[pass].clear();
    squatter.take(8);
    results.push_back(parallel.backward_loss());
    squatter.take(8);
  }
  parallel->stream().synchronize();
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_THAT(elements_of<float>(results[i].view()), Each(i % 2 == 0 ? 2.0F : 1.0F)) << i;
  squatter.expect_sevens();
}

// Two gradients of a bucket each: the second is complete before the stream comes to a gate, the first behind
// it.
struct Gated final : Module {
  static constexpr std::size_t kElements = std::size_t{7} << 20;  // 28 MiB
  explicit Gated(std::shared_ptr<Stream> stream)
      : Module(std::move(stream)), ones(zeros(Shape{kElements}, DType::f32, device())) {
    for (int i = 0; i < 2; ++i) {
      values.push_back(zeros(Shape{kElements}, DType::f32, device()));
      gradients.push_back(zeros(Shape{kElements}, DType::f32, device()));
    }
    copy_elements(ones.view(), view_of(std::span(host_ones)), this->stream());
    this->stream().synchronize();
  }
  std::vector<Parameter> parameters() override {
    return {{"a", values[0], {}, gradients[0]}, {"b", values[1], {}, gradients[1]}};
  }
  Value do_forward(Value const& input) override { return input; }
  Value do_backward(Value const& gradient, GradientReady const& ready) override {
    copy_elements(gradients[1].view(), ones.view(), stream());
    ready(1);
    if (gated) gate.emplace(stream());
    copy_elements(gradients[0].view(), ones.view(), stream());
    ready(0);
    return gradient;
  }
  std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
    return std::make_shared<Gated>(std::move(stream));
  }

  std::vector<float> host_ones = std::vector<float>(kElements, 1.0F);
  Tensor ones;
  std::vector<Tensor> values;
  std::vector<Tensor> gradients;
  bool gated = false;
  std::optional<Gate> gate;
};

TEST(GpuDataParallel, P8GradientsTravelWhileTheBackwardPassStillRuns) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  std::size_t const n = test_device_count();
  auto const module = std::make_shared<Gated>(std::shared_ptr<Stream>(make_compute_stream(test_device(0))));
  DataParallel parallel(module, {.device_ids = test_devices(n)});
  Tensor const input = counting<float>(test_device(0), {n, 1});
  static_cast<void>(parallel.backward(parallel.forward(input)));  // makes memory, connects
  module->stream().synchronize();
  auto const beside = make_comm_stream(test_device(0));
  auto const first_of = [&](Tensor const& gradient) {
    return elements_of<float>(slice(gradient.view(), 0, 1), *beside).front();
  };
  ASSERT_EQ(first_of(module->gradients[1]), static_cast<float>(n));
  module->gated = true;
  Value const output = parallel.forward(input);
  zero_fill(module->gradients[1].view(), module->stream());
  module->stream().synchronize();  // no sum of the first pass is left
  static_cast<void>(parallel.backward(output));
  auto const deadline = std::chrono::steady_clock::now() + Gate::kLongest / 2;
  while (first_of(module->gradients[1]) != static_cast<float>(n) &&
         std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_EQ(first_of(module->gradients[1]), static_cast<float>(n)) << "it waited for the rest of the pass";
  EXPECT_TRUE(module->gate->holds());
  module->gate->open();
  module->stream().synchronize();
  EXPECT_EQ(first_of(module->gradients[0]), static_cast<float>(n));
}

}  // namespace
}  // namespace ddp::testing
