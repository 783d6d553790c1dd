// What ranks find out of each other's devices before they choose how to communicate.
#include "comm/group/rank_location.hpp"
#include "comm/group/shared_gpus.hpp"

#include <gmock/gmock.h>

#include <utility>

#include "support/errors.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankLocation on_cpu() { return location_of(Device{}, ""); }

RankLocation on_gpu(int index, std::string const& card, std::string const& uuid,
                    std::string const& host = "a", int slice = 0) {
  return {host, Device{DeviceKind::cuda, DeviceIndex{index}}, card, uuid, slice, "-"};
}

TEST(RankLocation, ReachesTheFirstRankAsItIs) {
  auto const control = make_in_process_control(3);
  std::vector<RankLocation> ranks{on_cpu(), on_gpu(1, "0000:06:00.0", "GPU-1"), location_of(Device{}, "shm")};
  ranks[1].cores = {{0, 1, 17}, {{42, 1.5}, {43, 2}}};
  ranks[1].host = "My Mac\n 2";  // any bytes
  ranks[2].backend = "a b";
  run_ranks(3, [&](int rank) {
    auto const index = static_cast<std::size_t>(rank);
    auto found = gather_locations({control[index], "test", all_ranks(3)}, ranks[index],
                                  Deadline::after(std::chrono::seconds(30)));
    if (rank != 0) {
      EXPECT_THAT(found, ::testing::IsEmpty()) << "n ranks hear n locations, not n * n";
      return;
    }
    for (std::size_t r = 0; r < found.size(); ++r) {
      EXPECT_EQ(std::exchange(found[r].rank, Rank{-1}).index(), r);
    }
    EXPECT_EQ(found, ranks);
  });
}

TEST(RankLocation, AnotherVersionOfTheLibraryIsNamedWithItsHost) {
  std::vector<RankLocation> ranks{on_gpu(0, "06", "GPU-1", "a"), on_gpu(0, "06", "GPU-2", "b")};
  ranks[0].version = ranks[1].version = "0.1.0";
  EXPECT_NO_THROW(check_locations(ranks));
  ranks[1].version = "0.2.0";
  auto const error = error_of<CommError>([&] { check_locations(ranks); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(),
              HasSubstr("rank 0 (on a) runs version 0.1.0 of this library, rank 1 (on b) version "
                        "0.2.0; every host needs the same"));
}

TEST(RankLocation, BuildsThatDifferAreSaid) {
  std::vector<RankLocation> ranks{on_cpu(), on_cpu(), on_cpu()};
  EXPECT_EQ(different_builds(ranks), "");
  EXPECT_GE(ranks[0].build.size(), 16U) << "the test program has a build id";
  EXPECT_THAT(ranks[0].build, ::testing::MatchesRegex("[0-9a-f]+"));
  ranks[2].build = "00";
  EXPECT_THAT(different_builds(ranks), HasSubstr("rank 2 (on "));
  EXPECT_THAT(different_builds(ranks),
              HasSubstr("runs another build of the program or of this library than rank 0"));
}

TEST(RankLocation, AHostWithoutGpusIsNamed) {
  std::vector<RankLocation> ranks{on_gpu(0, "06", "GPU-1", "a"), on_cpu()};
  ranks[1].host = "b";
  EXPECT_THAT(error_of<CommError>([&] { check_locations(ranks); }).what(),
              HasSubstr("found rank 0 (on a) on cuda:0 (06), rank 1 (on b) on cpu:0; look at"));
}

// A11: CPUs of two hosts have the same numbers.
TEST(RankLocation, CountsTheCpusOfEachHostByThemselves) {
  auto const rank = [](std::string const& host, std::vector<int> const& cpus) {
    RankLocation placement = on_gpu(0, "06", "GPU-1", host);
    placement.cores.cpus = cpus;
    return placement;
  };
  EXPECT_THAT(have_own_cores(std::vector{rank("a", {0}), rank("b", {0}), rank("a", {1}), rank("b", {0})}),
              ElementsAre(true, false, true, false));
}

TEST(RankLocation, FindsRanksThatShareACard) {
  EXPECT_EQ(shared_gpus({}), "");
  EXPECT_EQ(shared_gpus(std::vector{on_cpu(), on_cpu()}), "");
  std::vector<RankLocation> const apart{on_gpu(0, "06", "GPU-1"), on_gpu(1, "07", "GPU-2"),
                                        on_gpu(0, "06", "GPU-3", "b")};
  EXPECT_EQ(shared_gpus(apart), "") << "equal bus ids of two hosts are two cards";
  std::vector<RankLocation> const virtual_devices{on_gpu(0, "06", "GPU-1"), on_gpu(1, "06", "GPU-1"),
                                                  on_gpu(2, "07", "GPU-2"), on_gpu(3, "07", "GPU-2")};
  EXPECT_EQ(shared_gpus(virtual_devices), "ranks 0, 1 share GPU 06; ranks 2, 3 share GPU 07");
  std::vector<RankLocation> const slices{on_gpu(0, "06", "MIG-1"), on_gpu(0, "07", "GPU-2"),
                                         on_gpu(0, "06", "MIG-2")};
  EXPECT_EQ(shared_gpus(slices), "ranks 0, 2 share GPU 06");
}

TEST(RankLocation, FindsRanksThatShareACardInOneProcess) {
  auto const rank = [](std::string const& uuid, int process, std::string const& host = "a") {
    RankLocation placement = on_gpu(0, uuid, uuid, host);
    placement.process = process;
    return placement;
  };
  EXPECT_EQ(shared_in_one_process(std::vector{rank("1", 10), rank("1", 11), rank("2", 10)}), "");
  EXPECT_EQ(shared_in_one_process(std::vector{rank("1", 10), rank("1", 11), rank("1", 10)}),
            "ranks 0, 2 share GPU 1");
  EXPECT_EQ(shared_in_one_process(std::vector{on_cpu(), on_cpu()}), "");
}

// Bad input: two hosts that are one machine.
TEST(RankLocation, FindsRanksOfTwoHostsThatShareACard) {
  std::vector<RankLocation> const apart{
      on_gpu(0, "06", "GPU-1", "a/boot/pid:[1]"), on_gpu(0, "06", "GPU-2", "b/boot/pid:[2]"),
      on_gpu(1, "07", "GPU-3", "b/boot/pid:[2]", 0), on_gpu(1, "07", "GPU-3", "b/boot/pid:[2]", 1)};
  EXPECT_EQ(shared_between_hosts(apart), "") << "virtual devices of one host are meant";
  std::vector<RankLocation> const same{on_gpu(0, "06", "GPU-1", "a/boot/pid:[1]"),
                                       on_gpu(0, "06", "GPU-1", "b/boot/pid:[2]"), on_cpu()};
  EXPECT_EQ(shared_between_hosts(same), "ranks 0 (on a), 1 (on b) share GPU 06");
}

// Bad input: ranks bound to one card by mistake.
TEST(RankLocation, TellsRanksThatWereToShareFromThoseThatWereNot) {
  auto const slice = [](int index) { return on_gpu(index, "06", "GPU-1", "a", index); };
  EXPECT_FALSE(share_unasked(std::vector{slice(0), slice(1)}));
  EXPECT_FALSE(share_unasked(std::vector{on_gpu(0, "06", "MIG-1"), on_gpu(0, "06", "MIG-2")}));
  EXPECT_FALSE(share_unasked(std::vector{on_cpu(), on_cpu()}));
  EXPECT_TRUE(share_unasked(
      std::vector{on_gpu(0, "06", "GPU-1"), on_gpu(0, "07", "GPU-2"), on_gpu(0, "07", "GPU-2")}));
}

// Bad input: some ranks see a GPU and some do not.
TEST(RankLocation, MixedCpuAndGpuRanksAreAnErrorThatListsAll) {
  std::vector<RankLocation> ranks{on_gpu(0, "06", "GPU-1"), on_cpu(), on_gpu(1, "07", "GPU-2")};
  ranks[1].host = ranks[0].host;
  auto const error = error_of<CommError>([&] { check_locations(ranks); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 on cuda:0 (06), rank 1 on cpu:0, rank 2 on cuda:1 (07)"));
  EXPECT_THAT(error.what(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(RankLocation, RanksThatInsistOnDifferentBackendsAreAnError) {
  std::vector<RankLocation> ranks{location_of(Device{}, "shm"), location_of(Device{}, "")};
  auto const error = error_of<CommError>([&] { check_locations(ranks); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 asks for the backend shm, rank 1 for -"));
  EXPECT_THAT(error.what(), HasSubstr("DDP_BACKEND"));
  ranks[1] = ranks[0];
  check_locations(ranks);
}

}  // namespace
}  // namespace ddp::testing
