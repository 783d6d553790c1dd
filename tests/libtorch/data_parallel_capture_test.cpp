// DataParallel while PyTorch captures a CUDA graph.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "libtorch/data_parallel_models.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

class LibtorchCapture : public OnEachKind {};
INSTANTIATE_TEST_SUITE_P(Devices, LibtorchCapture, ::testing::Values(DeviceKind::cuda), KindName());

TEST_P(LibtorchCapture, P14IsRefusedAndTheNextPassWorks) {
  auto net = make<TwoLayers>();
  DataParallel model(net, replicas(2));
  auto const x = rows(6);
  auto const expected = net->forward(x);
  expect_near(model(x), expected);
  {
    c10::cuda::CUDAStreamGuard const guard(c10::cuda::getStreamFromPool(false, c10::DeviceIndex{0}));
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    auto const error = error_of([&] { static_cast<void>(model(x)); });
    graph.capture_end();
    EXPECT_EQ(error.code(), ErrorCode::invalid_state);
    EXPECT_THAT(error.what(), HasSubstr("DataParallel cannot be captured into a CUDA graph"));
    expect_near(model(x), expected);
  }
  expect_near(model(x), expected);
}

}  // namespace
}  // namespace ddp::testing
