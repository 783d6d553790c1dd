// The contract suite over ranks that are processes.
#include "ddp/comm/factory.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

class ShmCommunicator : public ::testing::TestWithParam<ContractCase> {};

TEST_P(ShmCommunicator, KeepsTheContract) {
  ContractContext context{world().communicator(), [](std::chrono::milliseconds timeout) {
                            return make_communicator(world().shared_control(), world().device(),
                                                     {.timeout = timeout});
                          }};
  GetParam().run(context);
}

INSTANTIATE_TEST_SUITE_P(Processes, ShmCommunicator, ::testing::ValuesIn(communicator_contract()),
                         [](auto const& parameters) { return std::string(parameters.param.name); });

TEST(ShmCommunicator, IsWhatProcessesOfOneHostGet) {
  EXPECT_EQ(world().communicator().backend(), world().size() == 1 ? "solo" : "shm");
}

}  // namespace
}  // namespace ddp::testing
