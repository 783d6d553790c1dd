// Which ranks of a host may spin while they wait, by what each may run on.
#include "comm/group/core_shares.hpp"

#include <gmock/gmock.h>

#include "ddp/device/host_threads.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Cpus = std::vector<int>;

std::vector<bool> own(std::vector<Cpus> const& cpus) {
  std::vector<CoreShare> ranks;
  for (Cpus const& each : cpus) ranks.push_back({each, {}});
  return have_own_cores(ranks);
}

TEST(CoreShares, A11RanksThatAreBoundToACoreEachHaveOne) {
  EXPECT_THAT(own({{0}, {1}}), ElementsAre(true, true));
  EXPECT_THAT(own({{0, 4}, {1, 5}, {2, 6}, {3, 7}}), ElementsAre(true, true, true, true));
}

TEST(CoreShares, RanksThatMayRunAnywhereAreCountedAgainstAllCpus) {
  Cpus const all{0, 1, 2};
  EXPECT_THAT(own({all, all, all}), ElementsAre(true, true, true));
  EXPECT_THAT(own({all, all, all, all}), ElementsAre(false, false, false, false));
  EXPECT_THAT(own({}), IsEmpty());
}

TEST(CoreShares, RanksThatAreBoundToTheSameCpuHaveNone) {
  EXPECT_THAT(own({{0}, {0}}), ElementsAre(false, false));
  EXPECT_THAT(own({{0}, {0}, {1}}), ElementsAre(false, false, true)) << "the third one is alone on its own";
}

// As many CPUs as ranks are not enough if they are not those that the ranks may use.
TEST(CoreShares, WhoCompetesForTooFewCpusHasNoneWhateverOthersHave) {
  EXPECT_THAT(own({{0, 1, 2, 3}, {3}, {3}}), ElementsAre(true, false, false));
  EXPECT_THAT(own({{3}, {0, 1, 2, 3}, {3}}), ElementsAre(false, true, false)) << "in any order";
  EXPECT_THAT(own({{0}, {0, 1}, {0, 1}}), ElementsAre(false, false, false)) << "three for two";
}

TEST(CoreShares, ARankMovesForOneThatHasNoOtherCpu) {
  EXPECT_THAT(own({{0, 1}, {0}}), ElementsAre(true, true));
  EXPECT_THAT(own({{0, 1}, {1, 2}, {0}, {1}}), ElementsAre(false, true, false, false))
      << "0, 1 are for ranks 0, 2, 3; 2 is left for rank 1";
  EXPECT_THAT(own({{0, 1}, {1, 2}, {2, 3}, {0}}), ElementsAre(true, true, true, true));
}

TEST(CoreShares, ARankOfUnknownCpusHasNone) { EXPECT_THAT(own({{}, {0}}), ElementsAre(false, true)); }

TEST(CoreShares, TheTimeOfACgroupIsForAllRanksInIt) {
  auto const ranks = [](double cpus, std::size_t count) {
    return std::vector<CoreShare>(count, CoreShare{{0, 1, 2, 3}, {{17, cpus}}});
  };
  EXPECT_THAT(have_own_cores(ranks(2, 2)), ElementsAre(true, true));
  EXPECT_THAT(have_own_cores(ranks(1.5, 2)), ElementsAre(false, false));
  EXPECT_THAT(have_own_cores(ranks(0.5, 1)), ElementsAre(false));
  // A container each, of which one has little time.
  std::vector<CoreShare> const apart{{{0, 1}, {{17, 1}}}, {{0, 1}, {{18, 0.2}}}};
  EXPECT_THAT(have_own_cores(apart), ElementsAre(true, false));
  // The group around both.
  std::vector<CoreShare> const nested{{{0, 1}, {{17, 1}, {9, 1}}}, {{0, 1}, {{18, 1}, {9, 1}}}};
  EXPECT_THAT(have_own_cores(nested), ElementsAre(false, false));
}

TEST(CoreShares, AThreadsShareIsWhatItMayRunOn) {
  EXPECT_THAT(core_share().cpus, SizeIs(static_cast<std::size_t>(allowed_cpus())));
  EXPECT_THAT(core_share().cpus, SizeIs(Gt(0U)));
}

}  // namespace
}  // namespace ddp::testing
