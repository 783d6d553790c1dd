// R1 to R4, R6, R9 and R12 against the oracle, with ranks that are processes.
#include "support/models/ddp_oracle.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

class DdpOracle : public ::testing::TestWithParam<OracleCase> {};

TEST_P(DdpOracle, ShardsGiveTheUpdateOfTheWholeBatch) { check_against_oracle(world(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Processes, DdpOracle, ::testing::ValuesIn(oracle_cases()),
                         [](auto const& parameters) { return parameters.param.name(); });

}  // namespace
}  // namespace ddp::testing
