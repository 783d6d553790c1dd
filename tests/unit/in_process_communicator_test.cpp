// The contract suite over ranks that are threads.
#include "ddp/comm/factory.hpp"
#include "support/communicator_contract.hpp"
#include "support/run_ranks.hpp"

namespace ddp::testing {
namespace {

using Parameters = std::tuple<int, ContractCase>;

class InProcessCommunicator : public ::testing::TestWithParam<Parameters> {};

TEST_P(InProcessCommunicator, KeepsTheContract) {
  auto const& [size, contract_case] = GetParam();
  auto const communicators = make_in_process_communicators(size);
  std::mutex mutex;
  std::vector<std::vector<std::unique_ptr<Communicator>>> made;
  run_ranks(size, [&, size = size, run = contract_case.run](int rank) {
    std::size_t next = 0;
    ContractContext context{*communicators[static_cast<std::size_t>(rank)],
                            [&](std::chrono::milliseconds timeout) {
                              // The first rank that comes makes them for all.
                              std::lock_guard const lock(mutex);
                              if (next == made.size()) {
                                made.push_back(make_in_process_communicators(size, {.timeout = timeout}));
                              }
                              return std::move(made[next++][static_cast<std::size_t>(rank)]);
                            }};
    run(context);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, InProcessCommunicator,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(communicator_contract())),
                         [](auto const& parameters) {
                           return text(std::get<1>(parameters.param).name, "On",
                                       std::get<0>(parameters.param));
                         });

}  // namespace
}  // namespace ddp::testing
