// The contract suite over MPI, as ranks of several hosts have it.
#include <gmock/gmock.h>

#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/errors.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

std::unique_ptr<Communicator> make(std::chrono::milliseconds timeout) {
  return make_communicator(world().shared_control(), world().device(),
                           {.timeout = timeout, .backend = "mpi"});
}

class MpiCommunicator : public ::testing::TestWithParam<ContractCase> {
 protected:
  static void SetUpTestSuite() { all() = make(std::chrono::minutes(1)); }
  static void TearDownTestSuite() { all().reset(); }
  static std::unique_ptr<Communicator>& all() {
    static std::unique_ptr<Communicator> one;
    return one;
  }
};

TEST_P(MpiCommunicator, KeepsTheContract) {
  ASSERT_EQ(all()->backend(), "mpi");
  ContractContext context{*all(), &make};
  GetParam().run(context);
}

INSTANTIATE_TEST_SUITE_P(Processes, MpiCommunicator, ::testing::ValuesIn(communicator_contract()),
                         [](auto const& parameters) { return std::string(parameters.param.name); });

// Whoever aborts, and whoever is in a meeting or in the middle of an operation then.
TEST(MpiBackend, AnyRankMayAbortInTheMiddle) {
  for (int round = 0; round < 6; ++round) {
    auto const child = make(std::chrono::minutes(5));
    auto const stream = make_comm_stream(child->device());
    Elements<double> const small(*child, 3, 1.0);
    Elements<double> const large(*child, std::size_t{1} << 18, 1.0);
    auto const error = error_of<CommError>([&] {
      auto const begin = std::chrono::steady_clock::now();
      for (;;) {
        child->all_reduce(round % 2 == 0 ? small.view() : large.view(), ReduceOp::average(), *stream);
        stream->synchronize();
        bool const now = std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(5 + round);
        if (now && child->rank() == round % child->size()) child->abort("enough");
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("enough"));
    world().barrier();
  }
}

TEST(MpiBackend, IsNotWhatRanksOfOneHostGetUnasked) {
  EXPECT_EQ(make_communicator(world().shared_control(), world().device())->backend(), "shm");
}

// As the sub-groups of a World make it for a device that is not the World's.
TEST(MpiBackend, SomeOfTheRanksHaveOneByThemselvesInAnyOrder) {
  std::vector<Rank> members;  // those of this rank's parity, the last one first
  for (int r = world().size() - 1; r >= 0; --r) {
    if (r % 2 == world().rank().value() % 2) members.emplace_back(r);
  }
  auto const comm =
      make_communicator(world().shared_control(), text("test/parity", members.back()), members,
                        world().device(), {.timeout = std::chrono::minutes(1), .backend = "mpi"});
  ASSERT_EQ(comm->size(), static_cast<int>(members.size()));
  EXPECT_EQ(members[comm->rank().index()], world().rank());
  auto const stream = make_comm_stream(world().device());
  Elements<float> const first(*comm, 3, static_cast<float>(world().rank().value()));
  comm->broadcast(first.view(), Rank{0}, *stream);
  stream->synchronize();
  EXPECT_EQ(first.host()[2], static_cast<float>(members[0].value()));
}

// DDP_BACKEND: what cannot be had is an error with what is there.
TEST(MpiBackend, ABackendThatIsNotThereIsRefused) {
  auto const error = error_of([] {
    static_cast<void>(make_communicator(world().shared_control(), world().device(), {.backend = "nccl"}));
  });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("there is: shm, mpi"));
}

}  // namespace
}  // namespace ddp::testing
