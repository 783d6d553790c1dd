// The contract suite over memory of GPUs without NCCL: one rank alone, ranks that share a GPU, and ranks with
// a GPU each that go through host memory because they were asked to.
#include <gmock/gmock.h>

#include <cstdlib>

#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Communicator> staged(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  return make_communicator(world().shared_control(), world().device(),
                           {.timeout = timeout, .backend = "staged"});
}

class StagedCommunicator : public ::testing::TestWithParam<ContractCase> {};

TEST_P(StagedCommunicator, KeepsTheContract) {
  auto const communicator = staged();
  ContractContext context{*communicator, [](std::chrono::milliseconds timeout) { return staged(timeout); }};
  GetParam().run(context);
}

INSTANTIATE_TEST_SUITE_P(Gpu, StagedCommunicator, ::testing::ValuesIn(communicator_contract()),
                         [](auto const& parameters) { return std::string(parameters.param.name); });

TEST(StagedCommunicator, IsWhatRanksThatShareAGpuGetUnasked) {
  ASSERT_EQ(world().device().kind, DeviceKind::cuda);
  EXPECT_EQ(staged()->backend(), world().size() == 1 ? "solo" : "staged");
  if (world().size() == 1) {
    EXPECT_EQ(world().communicator().backend(), "solo");
  } else if (std::getenv("DDP_VIRTUAL_DEVICES") != nullptr) {
    EXPECT_EQ(world().communicator().backend(), "staged");
  }
}

// Halves of staging are used again and again, and factors with them: each part must see its own.
TEST(StagedCommunicator, LargeOperationsInOneGroupKeepTheirFactorsApart) {
  auto const comm = staged();
  auto const stream = make_comm_stream(comm->device());
  std::size_t const size = 3'000'001;
  std::vector<Elements<float>> values;
  std::vector<Factor> factors;
  for (int i = 0; i < 4; ++i) {
    values.emplace_back(*comm, size, 1.0F);
    static_cast<void>(values.back().put(*stream));
    factors.emplace_back(*comm, i + 1.0, *stream);
  }
  comm->group([&] {
    for (std::size_t i = 0; i < values.size(); ++i) {
      comm->all_reduce(values[i].view(), factors[i].scaled_sum(), *stream);
    }
  });
  for (std::size_t i = 0; i < values.size(); ++i) {
    expect_elements<float>(
        values[i].fetch(*stream),
        [&](std::size_t) { return static_cast<float>(i + 1) * static_cast<float>(comm->size()); },
        text("all-reduce ", i));
  }
}

// F: a GPU that waits for a rank that never comes is let go, whatever becomes of the communicator meanwhile.
TEST(StagedCommunicator, AnOperationThatNobodyJoinsLetsTheGpuGo) {
  if (world().size() < 2) return;
  auto comm = staged(std::chrono::milliseconds(300));
  if (world().rank() == 0) {
    auto const stream = make_comm_stream(comm->device());
    auto const behind = make_compute_stream(comm->device());
    Elements<float> const values(*comm, 5'000'000, 1.0F);
    static_cast<void>(values.put(*stream));
    comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
    behind->wait(*stream);
    comm.reset();  // before its deadline, and with copies of it still to come
    for (Stream* const each : {stream.get(), behind.get()}) {
      auto const error = error_of<CommError>([&] { each->synchronize(); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_THAT(error.what(), HasSubstr("f32[5000000]"));
    }
  }
  world().barrier();
}

TEST(StagedCommunicator, AnAbortFromAnotherThreadLetsTheGpuGo) {
  if (world().size() < 2) return;
  auto const comm = staged(std::chrono::minutes(5));
  if (world().rank() == 0) {
    auto const stream = make_comm_stream(comm->device());
    Elements<float> const values(*comm, 5'000'000, 1.0F);
    static_cast<void>(values.put(*stream));
    comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm->abort("somebody else's trouble");
    });
    auto const error = error_of<CommError>([&] { stream->synchronize(); });
    other.join();
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_THAT(error.what(), HasSubstr("somebody else's trouble"));
  }
  world().barrier();
}

}  // namespace
}  // namespace ddp::testing
