// A World that computes on the program's own stream, and memory that is not where its view says, on GPUs.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <optional>

#include "ddp/ddp.hpp"
#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// Without an order with CUDA's default stream: what is right only by that order fails.
cudaStream_t own_handle = nullptr;
std::optional<World> the_world;

std::vector<float> read(TensorView const& from) {
  std::vector<float> elements(from.count());
  copy_elements(view_of(std::span(elements)), from, the_world->stream());
  the_world->stream().synchronize();
  return elements;
}

TEST(OwnStream, IsTheOneThatTheWorldComputesOn) {
  EXPECT_EQ(cuda_stream(the_world->stream()).handle(), own_handle);
  EXPECT_EQ(the_world->stream().device(), the_world->device());
  EXPECT_GT(the_world->compute_sms(), 0);
}

// Each gradient is written behind work that takes the GPU milliseconds; what reduces it must wait for that.
TEST(OwnStream, GradientsWrittenOnItAreReducedWhenTheyAreWritten) {
  constexpr std::size_t kCount = 100'000;
  DeviceToy<float> model(*the_world, {kCount, kCount});
  DistributedDataParallel ddp(*the_world, model.parameters());
  Tensor const scratch = zeros(Shape{std::size_t{256} << 20}, DType::u8, the_world->device());
  Tensor const ready = zeros(Shape{kCount}, DType::f32, the_world->device());
  std::vector<float> const mine(kCount, static_cast<float>(the_world->rank().value() + 1));
  cudaMemcpy(ready.view().data, mine.data(), kCount * sizeof(float), cudaMemcpyHostToDevice);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t p = 2; p-- > 0;) {
      for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(cudaMemsetAsync(scratch.view().data, i, scratch.view().bytes(), own_handle), cudaSuccess);
      }
      TensorView const& gradient = model.gradient_view(p);
      ASSERT_EQ(cudaMemcpyAsync(gradient.data, ready.view().data, gradient.bytes(), cudaMemcpyDeviceToDevice,
                                own_handle),
                cudaSuccess);
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
    // Behind the averages on the same stream, without a word of the host.
    ASSERT_EQ(cudaMemcpyAsync(ready.view().data, model.gradient_view(0).data, ready.view().bytes(),
                              cudaMemcpyDeviceToDevice, own_handle),
              cudaSuccess);
    float const average = static_cast<float>(the_world->size() + 1) / 2;
    EXPECT_THAT(read(ready), ::testing::Each(average)) << "step " << step;
    EXPECT_THAT(read(model.gradient_view(1)), ::testing::Each(average)) << "step " << step;
    cudaMemcpy(ready.view().data, mine.data(), kCount * sizeof(float), cudaMemcpyHostToDevice);
  }
}

// As cuBLAS does in a recorded step where it was given no workspace.
TEST(OwnStream, R24AStepThatAllocatesMemoryOnItIsRecorded) {
  constexpr std::size_t kCount = 1000;
  DeviceToy<float> model(*the_world, {kCount});
  DistributedDataParallel ddp(*the_world, model.parameters());
  StepGraph graph(ddp, [&] {
    TensorView const& gradient = model.gradient_view(0);
    void* memory = nullptr;
    ASSERT_EQ(cudaMallocAsync(&memory, gradient.bytes(), own_handle), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(memory, 0, gradient.bytes(), own_handle), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(gradient.data, memory, gradient.bytes(), cudaMemcpyDeviceToDevice, own_handle),
              cudaSuccess);
    ASSERT_EQ(cudaFreeAsync(memory, own_handle), cudaSuccess);
    ddp.gradient_ready(0);
    ddp.synchronize();
  });
  for (int step = 0; step < 6; ++step) {
    std::vector<float> other(kCount, 5);
    copy_elements(model.gradient_view(0), view_of(std::span(other)), the_world->stream());
    graph.run();
    EXPECT_THAT(read(model.gradient_view(0)), ::testing::Each(0)) << "step " << step;
  }
  EXPECT_EQ(graph.is_recorded(), the_world->communicator().backend() != "staged") << graph.why_eager();
}

TEST(OwnStream, ANumberOfTheHostIsReducedOverTheRanks) {
  double const ranks = the_world->size();
  EXPECT_EQ(the_world->all_reduce_scalar(the_world->rank().value() + 1), ranks * (ranks + 1) / 2);
  EXPECT_EQ(the_world->all_reduce_scalar(the_world->rank().value(), ReduceOp::max()), ranks - 1);
}

TEST(MemoryOfAView, IsComparedWithWhatCudaSaysBeforeAnythingIsSent) {
  Device const gpu = the_world->device();
  std::vector<float> host(100, 1.0F);
  Tensor const device = zeros(Shape{100}, DType::f32, gpu);
  TensorView const forgotten{device.view().data, Shape{100}, DType::f32};  // cpu:0
  TensorView const mistaken{host.data(), Shape{100}, DType::f32, gpu};

  Communicator& communicator = the_world->communicator();
  EXPECT_THAT(message_of([&] { communicator.all_reduce(mistaken, ReduceOp::sum(), the_world->stream()); }),
              HasSubstr("no memory of a GPU, but of the host"));
  for (TensorView const& view : {forgotten, mistaken}) {
    Parameter const parameter{.name = "w", .value = view, .bind_gradient = [](TensorView const&) {}};
    EXPECT_THAT(message_of([&] { DistributedDataParallel(*the_world, {parameter}); }),
                HasSubstr("parameter 0 \"w\" is f32[100] on "));
  }
  communicator.all_reduce(device, ReduceOp::sum(), the_world->stream());  // it is usable
  the_world->stream().synchronize();
}

}  // namespace
}  // namespace ddp::testing

int main(int argc, char** argv) {
  using namespace ddp::testing;
  ::testing::InitGoogleTest(&argc, argv);
  ddp::WorldOptions options{.timeout = std::chrono::seconds(60), .init_timeout = std::chrono::seconds(60)};
  options.stream = [](ddp::Device device) {
    cudaStreamCreateWithFlags(&own_handle, cudaStreamNonBlocking);  // of the current GPU
    return std::make_shared<ddp::CudaStream>(device, own_handle);
  };
  the_world = ddp::World::init(options);
  int const result = RUN_ALL_TESTS();
  the_world.reset();  // leaves the group
  cudaStreamDestroy(own_handle);
  return result;
}
