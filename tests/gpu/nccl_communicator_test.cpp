// The contract suite over ranks with a GPU each, and what only NCCL's communicator does.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <iostream>

#include "comm/nccl/communicator.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/devices/gate.hpp"
#include "support/errors.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A test that waits for a deadline gives this one: on a busy machine the first operation, which connects
// ranks, took 1.5 s.
constexpr auto kDeadline = 4s;

// The factory gives a single rank no NCCL: it is asked for here.
std::unique_ptr<Communicator> make_nccl(CommunicatorOptions const& options) {
  MemberGroup const members{world().shared_control(),
                            "ddp",
                            all_ranks(world().size()),
                            world().rank(),
                            {options.timeout, options.timeout_setting}};
  return make_nccl_communicator(members, world().device(), options);
}

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// For docs and for whoever looks at a failure; rank 0 speaks.
void report(std::string const& what) {
  if (world().rank() == 0) std::cout << "  " << what << std::endl;
}

void pass_barrier(Communicator& comm) {
  auto const stream = make_compute_stream(comm.device());
  comm.barrier(*stream);
  stream->synchronize();
}

class NcclCommunicatorOnGpus : public ::testing::TestWithParam<ContractCase> {};

// `own`: where the World has no NCCL.
ContractContext contract_context(std::unique_ptr<Communicator> const& own) {
  return {own ? *own : world().communicator(),
          [](std::chrono::milliseconds timeout) { return make_nccl({.timeout = timeout}); }, false,
          world().local_size() < world().size(), true};
}

TEST_P(NcclCommunicatorOnGpus, KeepsTheContract) {
  auto const alone = world().size() == 1 ? make_nccl({.timeout = 60s}) : nullptr;
  ContractContext context = contract_context(alone);
  GetParam().run(context);
}

INSTANTIATE_TEST_SUITE_P(Gpus, NcclCommunicatorOnGpus, ::testing::ValuesIn(communicator_contract()),
                         [](auto const& parameters) { return std::string(parameters.param.name); });

// R18: then the bits are those of every other backend, but for min and max, whose order never matters.
class NcclInRankOrder : public ::testing::TestWithParam<ContractCase> {};

TEST_P(NcclInRankOrder, R18KeepsTheContractOfHostMemory) {
  auto const make = [](std::chrono::milliseconds timeout) {
    auto made = make_nccl({.timeout = timeout});
    backend_of(*made).combine_in_rank_order();
    return made;
  };
  auto const comm = make(60s);
  ContractContext context{*comm, make, true, world().local_size() < world().size(), true};
  GetParam().run(context);
}

INSTANTIATE_TEST_SUITE_P(Gpus, NcclInRankOrder, ::testing::ValuesIn(communicator_contract()),
                         [](auto const& parameters) { return std::string(parameters.param.name); });

TEST(NcclCommunicatorOnGpus, IsWhatRanksWithAGpuEachGet) {
  EXPECT_EQ(world().communicator().backend(), world().size() == 1 ? "solo" : "nccl");
}

TEST(NcclCommunicatorOnGpus, ASplitIsQuickAndTakesLittleMemory) {
  auto const comm = make_nccl({.timeout = 60s});
  pass_barrier(*comm);
  std::size_t const before = memory_info(world().device()).free.value;
  auto const begin = Clock::now();
  auto const child = comm->split(all_ranks(comm->size()));
  double const made = milliseconds_since(begin);
  std::size_t const idle = memory_info(world().device()).free.value;
  pass_barrier(*child);
  double const used = milliseconds_since(begin);
  std::size_t const after = memory_info(world().device()).free.value;
  report(text("split: ", made, " ms, ", to_string(Bytes{before - std::min(before, idle)}),
              "; after its first barrier ", used, " ms, ",
              to_string(Bytes{before - std::min(before, after)})));
  EXPECT_LT(made, 10e3);
}

TEST(NcclCommunicatorOnGpus, F9ARankThatNeverComesIsNamed) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  Rank const last{world().size() - 1};
  world().barrier();
  if (world().rank() != last) {
    auto const error =
        error_of<CommError>([&] { static_cast<void>(make_nccl({.timeout = 60s, .init_timeout = 1s})); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), ::testing::ContainsRegex(text("missing: .*", last)));
  }
  world().barrier();
}

// Called in the middle of many that are alike: the number says which.
TEST(NcclCommunicatorOnGpus, F8TheFirstOperationThatDiffersIsNamedByItsNumber) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto const context = contract_context(nullptr);
  auto const comm = context.make_patient();
  auto const stream = make_comm_stream(world().device());
  Elements<float> const values(*comm, 1000);
  auto const error = context.difference_of(*comm, *stream, [&] {
    for (int i = 1; i <= 3000; ++i) {
      std::size_t const count = i == 2500 && world().rank() == 1 ? 700 : 500;
      comm->all_reduce(values.part(0, count), ReduceOp::sum(), *stream);
    }
  });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("operation 2500 differs between ranks"));
  EXPECT_THAT(error.what(), HasSubstr("f32[500]"));
  EXPECT_THAT(error.what(), HasSubstr("f32[700]"));
}

TEST(NcclCommunicatorOnGpus, AnOperationBehindOtherWorkIsNotLate) {
  auto const comm = make_nccl({.timeout = kDeadline});
  auto const stream = make_comm_stream(world().device());
  Elements<float> const values(*comm, 1000, 1.0F);
  comm->all_reduce(values.put(*stream), ReduceOp::max(), *stream);  // connects ranks
  stream->synchronize();
  std::this_thread::sleep_for(50ms);
  Gate gate(*stream);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
  std::this_thread::sleep_for(5s);
  world().barrier();  // no GPU waits for another rank's longer than that rank's host needs to come here
  gate.open();
  EXPECT_EQ(values.fetch(*stream)[0], static_cast<float>(world().size()));
}

// The watchdog sleeps when nothing is on its way for a second; the next operation wakes it.
TEST(NcclCommunicatorOnGpus, ADeadlineHoldsAfterALongRestToo) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto const comm = make_nccl({.timeout = kDeadline});
  auto const stream = make_comm_stream(world().device());
  Elements<float> const values(*comm, 1000, 1.0F);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
  stream->synchronize();
  std::this_thread::sleep_for(2500ms);
  world().barrier();
  if (world().rank() == 0) {
    auto const begin = Clock::now();
    auto const error =
        failure_of(*stream, [&] { comm->all_reduce(values.view(), ReduceOp::sum(), *stream); });
    double const took = milliseconds_since(begin);
    report(text("deadline of 4 s: the error came after ", took, " ms"));
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_GE(took, 3990);
    EXPECT_LT(took, 6500);
  }
  world().barrier();
}

// A thread that launches into a full queue has the driver's lock until the GPU moves on: here that takes the
// abort, so nothing that decides on it may wait for the driver.
TEST(NcclCommunicatorOnGpus, F8AHostThatWaitsForTheDriverDelaysNoDeadline) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto const comm = make_nccl({.timeout = kDeadline});
  auto const stream = make_comm_stream(world().device());
  Elements<float> const values(*comm, 1000, 1.0F);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);  // connects ranks
  Elements<float> const other(*comm, 1000);
  zero_fill(other.view(), *stream);
  stream->synchronize();
  world().barrier();
  if (world().rank().value() != world().size() - 1) {
    auto const begin = Clock::now();
    auto const error = failure_of(*stream, [&] {
      comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
      for (int i = 0; i < 10'000; ++i) zero_fill(other.view(), *stream);
    });
    report(text("deadline of 4 s, full queue: the error came after ", milliseconds_since(begin), " ms"));
    EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("4 s in operation 2"));
  }
  world().barrier();
}

// The GPU moves on when the host's stream has, and that one when it knows that the GPU got there, that it is
// well, and that all ranks called the same: without a word of the driver's, whose lock this thread has.
TEST(NcclCommunicatorOnGpus, AHostStreamBetweenItsOperationsAndAFullQueueHangsNothing) {
  auto const comm = make_nccl({.timeout = 60s});
  auto const stream = make_comm_stream(world().device());
  Elements<float> const values(*comm, 1000, 1.0F);
  Elements<float> const other(*comm, 1000);
  comm->all_reduce(values.put(*stream), ReduceOp::max(), *stream);  // connects ranks
  zero_fill(other.view(), *stream);
  stream->synchronize();
  HostStream host;
  Gate gate(*stream);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
  host.wait(*stream);
  stream->wait(host);
  std::thread opener([&] {
    std::this_thread::sleep_for(2500ms);  // the host's stream has asked whether the GPU is well
    gate.open();
  });
  for (int i = 0; i < 10'000; ++i) zero_fill(other.view(), *stream);
  opener.join();
  EXPECT_EQ(values.fetch(*stream)[0], static_cast<float>(world().size()));
  EXPECT_NO_THROW(host.synchronize());
}

TEST(NcclCommunicatorOnGpus, OperationsCanBeCapturedAndReplayed) {
  auto const comm = make_nccl({.timeout = 60s});
  auto const stream = make_comm_stream(world().device());
  cudaStream_t const handle = cuda_stream(*stream).handle();
  Elements<float> const values(*comm, 1000, 1.0F);
  comm->all_reduce(values.put(*stream), ReduceOp::max(), *stream);  // connects ranks
  stream->synchronize();
  DeviceGuard const guard(world().device());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
  ASSERT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  auto const size = static_cast<float>(world().size());
  EXPECT_EQ(values.fetch(*stream)[0], 1.0F) << "it ran when it was captured";
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(replay, handle), cudaSuccess);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);  // beside them, as usual
  EXPECT_EQ(values.fetch(*stream)[999], size * size * size);
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_NO_THROW(comm->check_health());
}

TEST(NcclCommunicatorOnGpus, ACaptureThatBeginsWhileTheWatchdogLooksIsUnharmed) {
  auto const comm = make_nccl({.timeout = 60s});
  auto const stream = make_comm_stream(world().device());
  cudaStream_t const handle = cuda_stream(*stream).handle();
  Elements<float> const values(*comm, 1000, 1.0F);
  comm->all_reduce(values.put(*stream), ReduceOp::max(), *stream);  // connects ranks
  stream->synchronize();
  DeviceGuard const guard(world().device());
  for (int i = 0; i < 10'000; ++i) {
    if (i % 8 == 0) comm->all_reduce(values.view(), ReduceOp::max(), *stream);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    zero_fill(values.view(), *stream);
    ASSERT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess) << "capture " << i;
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  EXPECT_EQ(values.fetch(*stream)[999], 1.0F);
  EXPECT_NO_THROW(comm->check_health());
}

TEST(NcclCommunicatorOnGpus, F8AGroupOfMoreOperationsThanAreRememberedMeetsItsDeadlineToo) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  Rank const last{world().size() - 1};
  auto const comm = make_nccl({.timeout = kDeadline});
  auto const stream = make_comm_stream(world().device());
  Elements<float> const values(*comm, 10, 1.0F);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
  stream->synchronize();
  world().barrier();
  if (world().rank() != last) {
    auto const error = failure_of(*stream, [&] {
      comm->group([&] {
        for (int i = 0; i < 6000; ++i) comm->all_reduce(values.view(), ReduceOp::max(), *stream);
      });
    });
    EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text("for rank ", last)));
  }
  world().barrier();
}

TEST(NcclCommunicatorOnGpus, AnAbortReachesTheOthersAtOnceAndEndsInTime) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  auto comm = make_nccl({.timeout = 60s});
  auto const stream = make_comm_stream(world().device());
  Elements<float> const values(*comm, 1 << 20, 1.0F);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
  stream->synchronize();
  world().barrier();
  auto const begin = Clock::now();
  if (world().rank() == 0) {
    std::this_thread::sleep_for(200ms);
    comm->abort("enough");
  } else {
    auto const error =
        failure_of(*stream, [&] { comm->all_reduce(values.view(), ReduceOp::sum(), *stream); });
    EXPECT_THAT(error.what(), HasSubstr("the group was ended by rank 0: enough"));
    EXPECT_LT(milliseconds_since(begin), 1200);
  }
  double const failed = milliseconds_since(begin);
  comm.reset();
  double const ended = milliseconds_since(begin);
  report(text("abort: ended after ", ended - failed, " ms"));
  EXPECT_LT(ended - failed, 5000);

  // The GPU and the process go on.
  auto const next = make_nccl({.timeout = 60s});
  auto const fresh = make_comm_stream(world().device());
  next->all_reduce(values.put(*fresh), ReduceOp::sum(), *fresh);
  EXPECT_EQ(values.fetch(*fresh)[7], static_cast<float>(world().size()));
}

TEST(NcclCommunicatorOnGpus, ItsEndWaitsForWhatIsOnAStream) {
  auto const stream = make_comm_stream(world().device());
  auto comm = make_nccl({.timeout = 60s});
  Elements<float> const values(*comm, 1 << 22, 1.0F);
  static_cast<void>(values.put(*stream));
  for (int i = 0; i < 20; ++i) comm->all_reduce(values.view(), ReduceOp::max(), *stream);
  comm.reset();
  EXPECT_EQ(values.fetch(*stream)[5], 1.0F);
}

// A failure of one communicator is none of those that were split from it, or it from.
TEST(NcclCommunicatorOnGpus, AFailureStaysInItsCommunicator) {
  auto const comm = make_nccl({.timeout = 60s});
  auto const child = comm->split(all_ranks(comm->size()));
  auto const other = comm->split(all_ranks(comm->size()));
  pass_barrier(*child);
  pass_barrier(*comm);  // every rank is through the child's
  child->abort("enough of this one");
  pass_barrier(*comm);
  pass_barrier(*other);
  comm->check_health();
  other->check_health();
}

TEST(NcclCommunicatorOnGpus, AStreamOfAnotherDeviceIsRefused) {
  auto const comm = make_nccl({.timeout = 60s});
  Elements<float> const values(*comm, 3);
  HostStream host;
  auto const error = error_of([&] { comm->all_reduce(values.view(), ReduceOp::sum(), host); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  pass_barrier(*comm);
}

}  // namespace
}  // namespace ddp::testing
