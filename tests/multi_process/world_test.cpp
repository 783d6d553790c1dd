// World over processes: ranks, sub-groups, barriers.
#include "ddp/parallel/world.hpp"

#include <gmock/gmock.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "ddp/core/text.hpp"
#include "ddp/device/host_threads.hpp"
#include "ddp/device/random.hpp"
#include "support/launcher/shell.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

TEST(World, L4L5KnowsItsPlaceFromWhatStartedIt) {
  bool const launched = std::getenv("DDP_CONTROL") != nullptr;
  auto const said = [&](char const* by_ddp_launch, char const* by_mpirun) {
    return std::string(std::getenv(launched ? by_ddp_launch : by_mpirun));
  };
  EXPECT_EQ(text(world().rank()), said("RANK", "OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(text(world().size()), said("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"));
  EXPECT_EQ(text(world().local_rank()), said("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"));
  EXPECT_EQ(text(world().local_size()), said("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"));
  EXPECT_EQ(world().device(), Device{});
}

TEST(World, SaysHowLongThePartsOfItsStartTook) {
  StartTimes const& times = world().start_times();
  EXPECT_GT(times.control.count(), 0);
  EXPECT_GT(times.device.count(), 0);
  EXPECT_GT(times.communicator.count(), 0);
  EXPECT_LT(times.control + times.device + times.communicator, std::chrono::seconds(60));
}

TEST(World, D13EachRankDrawsItsOwnRandomNumbersOrAllTheSame) {
  auto const draw = [](std::uint64_t seed, SeedScope scope) {
    manual_seed_all(seed, scope);
    std::vector<float> numbers(4);
    fill_uniform(view_of(std::span(numbers)), default_generator(Device{}), world().stream());
    auto const all =
        world().control().all_gather(world().next_name("draw"), join(numbers, " "), world().members(),
                                     Deadline::after(std::chrono::seconds(60)));
    return std::set<std::string>(all.begin(), all.end());
  };
  auto const own = draw(42, SeedScope::each_rank);
  EXPECT_EQ(own.size(), static_cast<std::size_t>(world().size()));
  EXPECT_EQ(draw(42, SeedScope::each_rank), own) << "reproducible";
  EXPECT_EQ(draw(42, SeedScope::every_rank).size(), 1U);
}

// A program may block SIGTERM when the World is there, and take it from a signalfd.
TEST(World, SignalsAreDeliveredToTheProgramsThreadsOnly) {
  if (std::getenv("DDP_CONTROL") == nullptr) GTEST_SKIP() << "Open MPI has threads of its own";
  ToyModel model({5, 1000});
  DistributedDataParallel ddp(world(), model.parameters());
  for (int step = 0; step < 3; ++step) {
    mark_all(ddp);
    ddp.synchronize();
  }
  int threads = 0;
  for (auto const& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(::getpid())) continue;
    ++threads;
    std::string const status = read_file(task.path() / "status");
    auto const blocked = std::stoull(status.substr(status.find("SigBlk:") + 7), nullptr, 16);
    EXPECT_NE(blocked & (1ULL << (SIGTERM - 1)), 0U) << status;
  }
  EXPECT_GE(threads, world().size() > 1 ? 1 : 0);
}

TEST(World, D14EachRankKnowsItsThreads) {
  char const* const given = std::getenv("OMP_NUM_THREADS");
  bool const launched = std::getenv("DDP_CONTROL") != nullptr;
  EXPECT_TRUE(given != nullptr || !launched) << "ddp-launch sets it";
  EXPECT_EQ(host_threads(), given != nullptr ? std::atoi(given) : allowed_cpus());
}

TEST(World, CopiesAreHandlesOnOneThing) {
  World copy = world();
  EXPECT_EQ(&copy.communicator(), &world().communicator());
  std::string const first = copy.next_name();
  EXPECT_NE(world().next_name(), first) << "they count together";
}

TEST(World, R19ASubGroupTrainsByItself) {
  std::vector<Rank> ranks;
  for (int r = world().rank().value() % 2; r < world().size(); r += 2) ranks.emplace_back(r);
  auto const half = world().subgroup(ranks);
  ASSERT_TRUE(half.has_value());
  EXPECT_EQ(half->size(), static_cast<int>(ranks.size()));
  half->barrier();
  ToyModel model({100}, world().rank().value());
  DistributedDataParallel ddp(*half, model.parameters());
  EXPECT_EQ(model.values[0][3], ToyModel::initial(ranks[0].value(), 3))
      << "the values of the group's first rank";
  for (int step = 0; step < 3; ++step) {
    model.clear_gradients();
    model.fill_gradients(half->rank().value());
    ddp.gradient_ready(0);
    ddp.synchronize();
    EXPECT_EQ(model.gradients[0][50], ToyModel::average_gradient(0, 50, half->size()));
  }
  auto const none = world().subgroup(world().rank() == 0 ? std::vector<Rank>{Rank{0}} : std::vector<Rank>{});
  EXPECT_EQ(none.has_value(), world().rank() == 0);
  world().barrier();
}

TEST(World, IsMadeOverAnyControlPlane) {
  World const world = World::over([](Deadline) { return make_in_process_control(1).front(); });
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.local_size(), 1);
  world.barrier();
  auto const error = error_of<Error>(
      [] { static_cast<void>(World::over([](Deadline) { return std::shared_ptr<ControlPlane>(); })); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ddp::testing
