// R1 to R4, R6, R9 and R12 against the oracle, with ranks that are threads.
#include "support/models/ddp_oracle.hpp"
#include "ddp/core/text.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {
namespace {

auto* const kCpus = VirtualCpus::before_all_tests(2);

class DdpOracle : public ::testing::TestWithParam<std::tuple<int, OracleCase>> {};

TEST_P(DdpOracle, ShardsGiveTheUpdateOfTheWholeBatch) {
  int const size = std::get<0>(GetParam());
  OracleCase const& way = std::get<1>(GetParam());
  auto worlds = World::in_process(size);
  run_ranks(size, [&](int rank) { check_against_oracle(worlds[static_cast<std::size_t>(rank)], way); });
}

// D15, with ranks that are threads of one process.
class TwoDevices : public ::testing::TestWithParam<OracleCase> {};

TEST_P(TwoDevices, D15ShardsGiveTheUpdateOfTheWholeBatch) {
  auto worlds = World::in_process(3);
  run_ranks(3, [&worlds](int rank) {
    check_two_devices_against_oracle(worlds[static_cast<std::size_t>(rank)],
                                     {DeviceKind::cpu, DeviceIndex{1}}, GetParam());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TwoDevices, ::testing::ValuesIn(oracle_cases()),
                         [](auto const& parameters) { return parameters.param.name(); });

INSTANTIATE_TEST_SUITE_P(
    Ranks, DdpOracle, ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(oracle_cases())),
    [](auto const& parameters) {
      return text(std::get<1>(parameters.param).name(), "_on", std::get<0>(parameters.param));
    });

}  // namespace
}  // namespace ddp::testing
