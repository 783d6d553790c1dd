// A case of the contract suite on ranks that are threads.
#pragma once

#include <mutex>
#include <tuple>

#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {

/// How many ranks, and the case.
using ThreadedCase = std::tuple<int, ContractCase>;

/// For INSTANTIATE_TEST_SUITE_P.
[[nodiscard]] inline std::string name_of(::testing::TestParamInfo<ThreadedCase> const& parameters) {
  return text(std::get<1>(parameters.param).name, "On", std::get<0>(parameters.param));
}

/// Runs the case over the communicators that `make(size, timeout)` gives, one for each rank.
template <class Make>
void run_contract_case(ThreadedCase const& threaded, Make make) {
  int const size = std::get<0>(threaded);
  ContractCase const& contract_case = std::get<1>(threaded);
  std::vector<std::unique_ptr<Communicator>> const communicators = make(size, CommunicatorOptions{}.timeout);
  std::mutex mutex;
  std::vector<std::vector<std::unique_ptr<Communicator>>> made;
  run_ranks(size, [&](int rank) {
    std::size_t next = 0;
    ContractContext context{*communicators[static_cast<std::size_t>(rank)],
                            [&](std::chrono::milliseconds timeout) {
                              // The first rank that comes makes them for all.
                              std::lock_guard const lock(mutex);
                              if (next == made.size()) made.push_back(make(size, timeout));
                              return std::move(made[next++][static_cast<std::size_t>(rank)]);
                            }};
    contract_case.run(context);
  });
}

}  // namespace ddp::testing
