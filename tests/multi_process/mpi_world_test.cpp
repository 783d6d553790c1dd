// Worlds of a program's own communicators of MPI, on four ranks (C2).
#include "ddp/mpi.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "ddp/core/error.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

WorldOptions const kOptions{.timeout = std::chrono::seconds(20), .init_timeout = std::chrono::seconds(20)};

int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int sum_by(World const& world, int mine) {
  world.communicator().all_reduce(view_of(std::span(&mine, 1)), ReduceOp::sum(), world.stream());
  world.stream().synchronize();
  return mine;
}

// The ranks of MPI_COMM_WORLD with this color, the last one first.
MPI_Comm split(int color) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, color, -rank_of(MPI_COMM_WORLD), &part);
  return part;
}

TEST(C2MpiWorld, HasTheRanksOfTheCommunicatorAndItsOrder) {
  MPI_Comm all = split(0);
  for (int round = 0; round < 2; ++round) {
    World const world = init_world(all, kOptions);
    EXPECT_EQ(world.size(), 4);
    EXPECT_EQ(world.rank(), 3 - rank_of(MPI_COMM_WORLD));
    EXPECT_EQ(world.local_rank().value(), world.rank().value());
    EXPECT_EQ(world.local_size(), 4);
    EXPECT_EQ(sum_by(world, 1), 4);
  }
  MPI_Comm_free(&all);
}

// "mpi" even on one host: as between hosts.
TEST(C2MpiWorld, TwoHalvesAreTwoWorldsAtATime) {
  for (char const* const backend : {"", "mpi"}) {
    int const mine = rank_of(MPI_COMM_WORLD);
    MPI_Comm half = split(mine % 2);
    WorldOptions options = kOptions;
    options.backend = backend;
    World const world = init_world(half, options);
    MPI_Comm_free(&half);  // the World has a duplicate
    EXPECT_EQ(world.size(), 2);
    EXPECT_EQ(world.rank(), 1 - mine / 2);
    EXPECT_EQ(sum_by(world, mine), mine % 2 == 0 ? 2 : 4) << backend;
    int all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT_EQ(all, 6) << "the program's own, over the border of the Worlds";
  }
}

TEST(C2MpiWorld, RanksBesideItGoOnWithoutIt) {
  int const mine = rank_of(MPI_COMM_WORLD);
  MPI_Comm trains = split(mine == 0 ? 1 : MPI_UNDEFINED);
  if (mine == 0) {
    World const world = init_world(trains, kOptions);
    EXPECT_EQ(world.size(), 1);
    EXPECT_EQ(world.communicator().backend(), "solo");
    MPI_Comm_free(&trains);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(C2MpiWorld, CommunicatorsThatCannotBeUsedAreRefused) {
  auto const none = error_of<Error>([] { static_cast<void>(init_world(MPI_COMM_NULL, kOptions)); });
  EXPECT_EQ(none.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(none.what(), HasSubstr("found MPI_COMM_NULL"));
  int const mine = rank_of(MPI_COMM_WORLD);
  MPI_Comm half = split(mine % 2);
  MPI_Comm inter = MPI_COMM_NULL;
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, mine % 2 == 0 ? 3 : 2, 0, &inter);
  auto const both = error_of<Error>([&] { static_cast<void>(init_world(inter, kOptions)); });
  EXPECT_THAT(both.what(), HasSubstr("found an intercommunicator"));
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

TEST(C2MpiWorld, ARankThatDoesNotComeEndsTheWaitOfTheOthers) {
  MPI_Comm all = split(0);
  if (rank_of(all) != 3) {
    WorldOptions options = kOptions;
    options.init_timeout = std::chrono::seconds(1);
    auto const error = error_of<CommError>([&] { static_cast<void>(init_world(all, options)); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("for every one of 4 MPI ranks"));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace ddp::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (std::getenv("MPI_WORLD_MODE") != nullptr) {  // MPI is not there yet, or no longer
    bool refused = false;
    for (bool const ended : {false, true}) {
      try {
        static_cast<void>(ddp::init_world(MPI_COMM_WORLD));
      } catch (ddp::Error const& error) {
        refused = error.code() == ddp::ErrorCode::unsupported;
        std::fprintf(stderr, "%s\n", error.what());
      }
      if (!refused) return 1;
      if (!ended) MPI_Init(nullptr, nullptr);
      if (!ended) MPI_Finalize();
    }
    return 0;
  }
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  // A World may live longer than MPI.
  std::optional<ddp::World> last = ddp::init_world(MPI_COMM_WORLD);
  int const result = RUN_ALL_TESTS();
  MPI_Finalize();
  last.reset();
  return result;
}
