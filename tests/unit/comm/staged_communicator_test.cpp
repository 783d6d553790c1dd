// Staged communicators of ranks that are threads, with memory of the CPU as the device's: everything but a
// GPU's own streams, which tests/gpu has.
#include "comm/staged/communicator.hpp"

#include <gmock/gmock.h>

#include <latch>

#include "support/contract/contract_threads.hpp"
#include "support/devices/virtual_cpus.hpp"

namespace ddp::testing {
namespace {

auto* const kCpus = VirtualCpus::before_all_tests(2);

using ::testing::HasSubstr;

std::vector<std::unique_ptr<Communicator>> staged(int size, std::chrono::milliseconds timeout) {
  auto communicators = make_in_process_communicators(size, {.timeout = timeout});
  for (auto& each : communicators)
    each = std::make_unique<StagedCommunicator>(std::move(each), Device{}, timeout);
  return communicators;
}

class StagedContract : public ::testing::TestWithParam<ThreadedCase> {};

TEST_P(StagedContract, HoldsThroughStaging) { run_contract_case(GetParam(), staged); }

INSTANTIATE_TEST_SUITE_P(Ranks, StagedContract,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(communicator_contract())),
                         name_of);

// A rank whose stream fails before an operation takes no part in it: the others learn why, at once.
TEST(StagedCommunicator, AFailureOfOneRanksStreamEndsTheOperationOfAll) {
  auto const communicators = staged(2, std::chrono::minutes(5));
  run_ranks(2, [&](int rank) {
    Communicator& comm = *communicators[static_cast<std::size_t>(rank)];
    HostStream stream;
    Elements<float> const values(comm, 1'000'000, 1.0F);
    if (rank == 0) stream.enqueue([] { throw Error(ErrorCode::device, "the GPU fell off the bus"); });
    auto const error =
        failure_of<Error>(stream, [&] { comm.all_reduce(values.view(), ReduceOp::sum(), stream); });
    EXPECT_THAT(error.what(), HasSubstr("the GPU fell off the bus"));
    EXPECT_EQ(error.code(), rank == 0 ? ErrorCode::device : ErrorCode::aborted);
  });
  for (auto const& each : communicators) EXPECT_THROW(each->check_health(), CommError);
}

// The device goes on behind a failed operation, with half a sum: what looks at the word must see it.
TEST(StagedCommunicator, R26TellsOfAFailureBeforeTheDeviceGoesOn) {
  auto inner = make_in_process_communicators(2, {.timeout = std::chrono::minutes(5)});
  std::latch called(1);
  run_ranks(2, [&](int rank) {
    auto const commits = std::make_shared<StepCommits>();
    StagedCommunicator comm(std::move(inner[static_cast<std::size_t>(rank)]), Device{},
                            std::chrono::minutes(5), commits);
    HostStream stream;
    Elements<float> const values(comm, 1000, 1.0F);
    comm.all_reduce(values.view(), ReduceOp::sum(), stream);
    stream.synchronize();
    EXPECT_EQ(*commits->poisoned(), 0U);
    if (rank == 0) {
      called.wait();
      return comm.abort("given up");
    }
    std::uint32_t seen = 0;
    static_cast<void>(failure_of<Error>(stream, [&] {
      comm.all_reduce(values.view(), ReduceOp::sum(), stream);
      stream.enqueue_always([&seen, word = commits->poisoned()] { seen = *word; });
      called.count_down();
    }));
    EXPECT_NE(seen, 0U);
  });
}

TEST(StagedCommunicator, RefusesAStreamOfAnotherDevice) {
  StagedCommunicator comm(std::move(make_in_process_communicators(1).front()),
                          Device{DeviceKind::cpu, DeviceIndex{1}}, std::chrono::minutes(1));
  HostStream elsewhere;
  EXPECT_THAT(message_of([&] { comm.barrier(elsewhere); }), HasSubstr("expected a stream of cpu:1"));
  comm.check_health();
}

}  // namespace
}  // namespace ddp::testing
