// Programs that use MPI themselves: a World takes MPI as it finds it, and leaves it as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "ddp/core/error.hpp"
#include "ddp/parallel/world.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

WorldOptions const kOptions{.timeout = std::chrono::seconds(20), .init_timeout = std::chrono::seconds(20)};

int sum_by_mpi(int mine) {
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

int sum_by(World const& world, int mine) {
  world.communicator().all_reduce(view_of(std::span(&mine, 1)), ReduceOp::sum(), world.stream());
  world.stream().synchronize();
  return mine;
}

TEST(OwnMpi, AWorldUsesItAndLeavesItRunning) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int round = 0; round < 3; ++round) {
    World const world = World::init(kOptions);
    EXPECT_EQ(world.size(), size);
    EXPECT_EQ(sum_by(world, 1), size);
    EXPECT_EQ(sum_by_mpi(2), 2 * size) << "beside the World";
  }
  EXPECT_EQ(sum_by_mpi(3), 3 * size) << "after the World";
}

// The control plane is served by rank 0, which may be the first to leave.
TEST(OwnMpi, RanksLeaveInAnyOrder) {
  for (int last = 0; last < 2; ++last) {
    World const world = World::init(kOptions);
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  SUCCEED();
}

TEST(OwnMpi, AGroupOfTheOtherRanksWorksOnWhenRank0HasLeft) {
  std::optional<World> world = World::init(kOptions);
  bool const leaves = world->rank() == 0;
  auto half = world->subgroup(leaves ? std::vector<Rank>{Rank{0}} : std::vector<Rank>{Rank{1}});
  if (!leaves) {
    while (world->control().lost().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(world->control().lost()[0].ranks.front(), 0);
    EXPECT_EQ(world->control().lost()[0].manner, Failure::Manner::left);
    half->barrier();
  }
  half.reset();
  world.reset();
}

}  // namespace
}  // namespace ddp::testing

namespace {

// What a World says to an MPI that it cannot use; `mode` is the test's.
int make_a_world(std::string_view mode) {
  if (mode == "single") MPI_Init(nullptr, nullptr);
  if (mode == "late") {
    MPI_Init(nullptr, nullptr);
    MPI_Finalize();
  }
  int const rank = ddp::RankInfo::from_environment().rank.value();
  if (mode == "absent" && rank == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
  int result = 0;
  try {
    static_cast<void>(ddp::World::init());
  } catch (ddp::Error const& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    result = 3;
  }
  if (mode == "single") MPI_Finalize();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) return make_a_world(argv[1]);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int const result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
