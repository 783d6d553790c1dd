// R1 to R4, R6, R9 and R12 against the oracle, with ranks that are threads.
#include "support/ddp_oracle.hpp"
#include "support/run_ranks.hpp"

namespace ddp::testing {
namespace {

class DdpOracle : public ::testing::TestWithParam<std::tuple<int, OracleCase>> {};

TEST_P(DdpOracle, ShardsGiveTheUpdateOfTheWholeBatch) {
  auto const& [size, way] = GetParam();
  auto worlds = World::in_process(size);
  run_ranks(size, [&worlds, way = way](int rank) {
    check_against_oracle(worlds[static_cast<std::size_t>(rank)], way);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, DdpOracle, ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(oracle_cases())),
    [](auto const& parameters) {
      return text(std::get<1>(parameters.param).name(), "_on", std::get<0>(parameters.param));
    });

}  // namespace
}  // namespace ddp::testing
