// 16-bit averages over numbers of ranks that this machine need not have: the absent ones have 0.
#include "comm/nccl/average.hpp"

#include <cuda_runtime_api.h>

#include "comm/nccl/connect.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "support/contract/average_accuracy.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

// As a communicator of this library has it.
class Connected {
 public:
  Connected()
      : connection_(connect_nccl(
            {{world().shared_control(), "test/average", world().control().everyone(), world().rank(), {60s}},
             world().device()},
            Deadline::after(60s))) {
    DeviceGuard const guard(world().device());
    open_nccl(connection_.group, *connection_.handles, true, [] { return true; });
  }
  ~Connected() { connection_.handles->close(); }
  Connected(Connected const&) = delete;
  Connected& operator=(Connected const&) = delete;
  [[nodiscard]] ncclComm_t handle() const { return connection_.handles->work(); }

 private:
  NcclConnection connection_;
};

template <class T>
void expect_no_bias_over(int ranks, Connected const& nccl, CudaStream& stream) {
  Communicator const& comm = world().communicator();
  auto const type = std::is_same_v<T, float16> ? ncclFloat16 : ncclBfloat16;
  NcclAverage const average(static_cast<std::size_t>(ranks), nccl.handle());
  Elements<T> const in(comm, kAveraged);
  for (std::size_t i = 0; i < kAveraged; ++i) in.host()[i] = average_sample<T>(world().rank().value(), i);
  Elements<T> const out(comm, kAveraged);
  ncclRedOp_t const reduction = average.reduction(dtype_of<T>);
  auto const expect = [&](Elements<T> const& values, char const* how) {
    expect_averages<T>(values.fetch(stream), world().size(), ranks, ranks + 1,
                       text(dtype_of<T>, " over ", ranks, ", ", how));
  };
  auto const average_into = [&](Elements<T> const& to) {
    ASSERT_EQ(ncclAllReduce(in.view().data, to.view().data, kAveraged, type, reduction, nccl.handle(),
                            stream.handle()),
              ncclSuccess);
    average.finish(to.view().data, kAveraged, dtype_of<T>, stream);
  };
  static_cast<void>(in.put(stream));
  average_into(out);
  expect(out, "all_reduce");
  zero_fill(out.view(), stream);
  stream.synchronize();

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  average_into(out);
  ASSERT_EQ(cudaStreamEndCapture(stream.handle(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(replay, stream.handle()), cudaSuccess);
  expect(out, "replayed");
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  average_into(in);
  expect(in, "all_reduce in place");
}

TEST(NcclAverage, OverManyRanksHasNoBias) {
  if (world().size() != 2 && world().size() != 4) GTEST_SKIP() << "needs 2 or 4 ranks";
  DeviceGuard const guard(world().device());
  Connected const nccl;
  CudaStream stream(world().device(), CudaStream::Kind::communication);
  for (int const ranks : {2, 3, 4, 5, 6, 7, 12}) {
    if (ranks != world().size() && std::has_single_bit(static_cast<unsigned>(ranks))) continue;
    expect_no_bias_over<float16>(ranks, nccl, stream);
    expect_no_bias_over<bfloat16>(ranks, nccl, stream);
  }
}

}  // namespace
}  // namespace ddp::testing
