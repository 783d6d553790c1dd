// The contract suite over ranks that are threads.
#include "support/contract/contract_threads.hpp"

namespace ddp::testing {
namespace {

class InProcessCommunicator : public ::testing::TestWithParam<ThreadedCase> {};

TEST_P(InProcessCommunicator, KeepsTheContract) {
  run_contract_case(GetParam(), [](int size, std::chrono::milliseconds timeout) {
    return make_in_process_communicators(size, {.timeout = timeout});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, InProcessCommunicator,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(communicator_contract())),
                         name_of);
// Averages over other numbers of ranks than powers of two.
INSTANTIATE_TEST_SUITE_P(MoreRanks, InProcessCommunicator,
                         ::testing::Combine(::testing::Values(5, 6, 7), ::testing::ValuesIn(average_cases())),
                         name_of);

}  // namespace
}  // namespace ddp::testing
