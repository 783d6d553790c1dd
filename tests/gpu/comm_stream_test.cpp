// Streams for communication that are chosen beside one that computes.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <memory>
#include <span>
#include <vector>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/busy_gpu.hpp"

namespace ddp::testing {
namespace {

constexpr Device kGpu{DeviceKind::cuda, DeviceIndex{0}};
constexpr std::size_t kLarge = std::size_t{64} << 20;

TEST(CudaStream, ACommunicationStreamBesideAnotherIsAsAnyOther) {
  auto const compute = make_compute_stream(kGpu);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  constexpr std::size_t kSmall = 1000;
  Tensor const small = zeros(Shape{kSmall}, DType::u8, kGpu);
  std::vector<std::unique_ptr<Stream>> made;  // kept, so that each must be another one
  for (int i = 0; i < 6; ++i) {
    keep_busy(memory, *compute);
    Stream& stream = *made.emplace_back(make_comm_stream(*compute));
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
    keep_busy(memory, *compute);
    ASSERT_EQ(cudaMemsetAsync(small.view().data, i + 1, kSmall, cuda_stream(*compute).handle()), cudaSuccess);
    stream.wait(*compute);
    std::vector<std::uint8_t> found(kSmall);
    copy_elements(view_of(std::span(found)), small, stream);
    stream.synchronize();
    EXPECT_THAT(found, ::testing::Each(i + 1));
  }
}

// A trial would end the capture.
TEST(CudaStream, OneBesideAStreamThatIsCapturedTakesNoTrial) {
  auto const compute = make_compute_stream(kGpu);
  cudaStream_t const handle = cuda_stream(*compute).handle();
  ASSERT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeRelaxed), cudaSuccess);
  auto const stream = make_comm_stream(*compute);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  std::size_t nodes = 1;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 0U);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(stream->device(), kGpu);
}

}  // namespace
}  // namespace ddp::testing
