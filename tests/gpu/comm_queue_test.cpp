// Which of the GPU's queues a stream for communication has.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <memory>
#include <span>
#include <vector>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "support/devices/busy_gpu.hpp"

namespace ddp::testing {
namespace {

void expect_of_communication(Stream& stream) {
  EXPECT_EQ(stream.device(), kGpu);
  int priority = 0;
  int lowest = 0;
  int highest = 0;
  ASSERT_EQ(cudaStreamGetPriority(cuda_stream(stream).handle(), &priority), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&lowest, &highest), cudaSuccess);
  EXPECT_EQ(priority, highest);
  unsigned flags = 0;
  ASSERT_EQ(cudaStreamGetFlags(cuda_stream(stream).handle(), &flags), cudaSuccess);
  EXPECT_EQ(flags, cudaStreamNonBlocking);
}

// It is a stream for communication afterwards too, and waits as before.
TEST(CommQueue, AStreamStaysWhatItIs) {
  auto const compute = make_compute_stream(kGpu);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  constexpr std::size_t kSmall = 1000;
  Tensor const small = zeros(Shape{kSmall}, DType::u8, kGpu);
  std::vector<std::unique_ptr<Stream>> made;  // kept, so that each has another queue
  for (int i = 0; i < 6; ++i) {
    Stream& stream = *made.emplace_back(make_comm_stream(kGpu));
    keep_busy(memory, *compute);
    cuda::choose_queue(stream, *compute);
    expect_of_communication(stream);
    keep_busy(memory, *compute);
    ASSERT_EQ(cudaMemsetAsync(small.view().data, i + 1, kSmall, cuda_stream(*compute).handle()), cudaSuccess);
    stream.wait(*compute);
    std::vector<std::uint8_t> found(kSmall);
    copy_elements(view_of(std::span(found)), small, stream);
    stream.synchronize();
    EXPECT_THAT(found, ::testing::Each(i + 1));
  }
}

TEST(CommQueue, AStreamGoesOnWithTheQueueOfAnother) {
  auto const compute = make_compute_stream(kGpu);
  CudaStream first(kGpu, CudaStream::Kind::communication);
  auto* const handle = first.handle();
  CUstream_st* taken = nullptr;
  {
    CudaStream second(kGpu, CudaStream::Kind::communication);
    taken = second.handle();
    ASSERT_TRUE(first.state()->queue()->may_change());
    first.state()->queue()->take(second.state()->queue());
    EXPECT_EQ(second.handle(), handle);
  }
  EXPECT_EQ(first.handle(), taken);
  EXPECT_EQ(cudaStreamQuery(handle), cudaSuccess) << "a thread that watches the stream may still use it";
  expect_of_communication(first);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  keep_busy(memory, first);
  compute->wait(first);
  compute->synchronize();
  EXPECT_TRUE(first.state()->is_idle("after a wait"));
}

TEST(CommQueue, TheProgramsOwnStreamIsLeftAlone) {
  auto const compute = make_compute_stream(kGpu);
  cudaStream_t handle = nullptr;
  ASSERT_EQ(cudaStreamCreate(&handle), cudaSuccess);
  {
    CudaStream own(kGpu, handle);
    EXPECT_FALSE(own.state()->queue()->may_change());
    cuda::choose_queue(own, *compute);
    EXPECT_EQ(own.handle(), handle);
  }
  EXPECT_EQ(cudaStreamDestroy(handle), cudaSuccess);
}

// A trial would end the capture.
TEST(CommQueue, BesideAStreamThatIsCapturedNothingIsTried) {
  auto const compute = make_compute_stream(kGpu);
  auto const stream = make_comm_stream(kGpu);
  cudaStream_t const handle = cuda_stream(*compute).handle();
  ASSERT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeRelaxed), cudaSuccess);
  cuda::choose_queue(*stream, *compute);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  std::size_t nodes = 1;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 0U);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace ddp::testing
