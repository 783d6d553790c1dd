// A sharded optimizer, whose state goes back to a checkpoint when a rank is lost (R26). Ranks are threads, on
// CPUs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/rebuild_newcomers.hpp"
#include "support/launcher/shell.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

/// A training whose optimizer is sharded. It saves behind step 4 only.
struct ShardedTraining {
  ShardedTraining(World const& of, std::filesystem::path to, libtorch::ShardedOptimizer::Update when)
      : world(of),
        folder(std::move(to)),
        update(when),
        net(Training::equal_on_ranks()),
        model(of, *net, how()) {
    begin();
  }
  static Wrapped::Options how() {
    Wrapped::Options options = several_buckets();
    options.runtime.sharding = Sharding::optimizer;
    return options;
  }
  void begin() {
    checkpoint.reset();
    optimizer.reset();
    auto const make = [](auto groups) {
      return std::make_unique<libtorch::AdamW>(std::move(groups), torch::optim::AdamWOptions(1e-2));
    };
    optimizer.emplace(model, make, libtorch::ShardedOptimizer::Groups{}, update);
    checkpoint.emplace(world, folder, *net, *optimizer);
  }
  void go_back() {
    begin();
    auto const restored = checkpoint->restore();
    ASSERT_TRUE(restored.has_value());
    done = static_cast<std::int64_t>(restored->position.step);
  }
  void step() {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 + done));
    auto const rows = torch::randn({12, 6}, generator).chunk(world.size()).at(world.rank().index());
    net->zero_grad();
    net->loss(rows).backward();
    optimizer->step();
    if (++done != 4) return;
    checkpoint->save({.step = 4});
    checkpoint->wait();
  }

  World world;
  std::filesystem::path folder;
  libtorch::ShardedOptimizer::Update update;
  std::shared_ptr<Net> net;
  Wrapped model;
  std::optional<libtorch::ShardedOptimizer> optimizer;
  std::optional<libtorch::Checkpoint> checkpoint;
  std::int64_t done = 0;
};

TEST(LibtorchRebuild, R26AShardedOptimizerGoesBackToTheLastCheckpointAndGivesTheBitsOfAStartFromIt) {
  for (auto const update :
       {libtorch::ShardedOptimizer::Update::in_step, libtorch::ShardedOptimizer::Update::in_backward}) {
    for (int const victim : {0, 2}) {
      TemporaryFolder const folder;
      std::mutex mutex;
      std::set<std::string> ends;
      auto const end = [&](ShardedTraining const& training) {
        training.world.barrier();
        std::lock_guard const lock(mutex);
        ends.insert(bytes_of(*training.net));
      };
      SurvivingRanks ranks(3);
      ranks.run([&](World& world) {
        int const old = world.rank().value();
        ShardedTraining training(world, folder.path(), update);
        training.net->in_backward = [&] {
          if (old == victim && training.done == 6) ranks.die(world);
        };
        Replicated alike(world, {&training.done}, [&] { training.go_back(); });
        while (training.done < kLast) {
          try {
            training.step();
          } catch (CommError const& error) {
            world.rebuild(error, alike);
            EXPECT_EQ(training.done, 4);
          }
        }
        end(training);
      });
      SurvivingRanks(2).run([&](World& world) {
        ShardedTraining training(world, folder.path(), update);
        training.go_back();
        while (training.done < kLast) training.step();
        end(training);
      });
      EXPECT_EQ(ends.size(), 1U) << "rank " << victim << " was killed";
    }
  }
}

TEST(LibtorchRebuild, R26ANewcomerOfAShardedOptimizerGoesOnFromTheLastCheckpointWithTheOthers) {
  for (auto const update :
       {libtorch::ShardedOptimizer::Update::in_step, libtorch::ShardedOptimizer::Update::in_backward}) {
    for (int const victim : {0, 1, 2}) {
      SCOPED_TRACE(victim);
      TemporaryFolder const folder, undisturbed;
      auto const ends = ends_with_a_newcomer(
          victim, 6,
          [&](World& world, bool disturbed) {
            return std::make_unique<ShardedTraining>(world, (disturbed ? folder : undisturbed).path(),
                                                     update);
          },
          [](ShardedTraining& training) {
            return std::make_unique<Replicated>(training.world, std::vector<Replicated::Part>{&training.done},
                                                [&training] { training.go_back(); });
          },
          [](ShardedTraining const& training) { return bytes_of(*training.net); });
      EXPECT_EQ(ends.size(), 6U);
      EXPECT_EQ(std::set<std::string>(ends.begin(), ends.end()).size(), 1U);
    }
  }
}

}  // namespace
}  // namespace ddp::testing
