// A new process in the place of a lost rank gets module, buffers and optimizer from the others (R26). Ranks
// are threads, on CPUs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/rebuild_models.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

// Weights, and averages of the batches. Any step's weights depend on the optimizer's state.
std::string all_of(Training const& training) {
  std::string all = bytes_of(*training.net);
  for (auto const& each : training.net->buffers())
    all.append(static_cast<char const*>(each.const_data_ptr()), each.nbytes());
  return all;
}

// A training that loses no rank, and one that gets a new process for one; `told`: of the optimizer too.
template <class Optimizer, class Options>
void expect_as_if_none_were_lost(Options const& options, bool told = true) {
  MakeOptimizer const make = [&](std::vector<at::Tensor> of) {
    return std::make_unique<Optimizer>(std::move(of), options);
  };
  auto const parts_of = [&](Training& training) {
    std::vector<Replicated::Part> parts{&training.done};
    if (told) parts.push_back(libtorch::replicated(training.world, *training.optimizer));
    return parts;
  };
  for (int const victim : {0, 1, 2}) {
    SCOPED_TRACE(victim);
    std::mutex mutex;
    std::multiset<std::string> ends;
    auto const end = [&](Training& training) {
      while (training.done < kLast) training.step();
      training.world.barrier();
      std::lock_guard const lock(mutex);
      ends.insert(all_of(training));
    };
    SurvivingRanks(3).run([&](World& world) {
      Training training(world, make);
      end(training);
    });
    SurvivingRanks ranks(3);
    std::thread other([&] {
      ranks.newcomer(victim, [&](World& world) {
        Training training(world, make);
        training.step();  // so that all it has is other than what the others have
        Replicated alike(world, parts_of(training));
        EXPECT_EQ(world.rank(), victim);
        EXPECT_EQ(training.done, 4);
        EXPECT_EQ(training.model.runtime().steps(), 4U);
        end(training);
      });
    });
    ranks.run([&](World& world) {
      Training training(world, make);
      Replicated alike(world, parts_of(training));
      while (training.done < 4) training.step();
      meet(world);
      if (world.rank() == victim) ranks.die(world);
      world.rebuild(loss_of(world), alike);
      if (world.size() < 3) rebuild_with_newcomer(world, alike, std::atomic<bool>(false));
      EXPECT_EQ(training.done, 4);
      end(training);
    });
    other.join();
    EXPECT_EQ(ends.size(), 6U);
    EXPECT_EQ(std::set<std::string>(ends.begin(), ends.end()).size() == 1, told);
  }
}

TEST(LibtorchRebuild, R26ANewcomerTrainsWithTheModuleAndTheOptimizerOfTheOthers) {
  expect_as_if_none_were_lost<libtorch::AdamW>(torch::optim::AdamWOptions(1e-2));
  expect_as_if_none_were_lost<libtorch::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9));
  // Without that state the ends differ.
  expect_as_if_none_were_lost<libtorch::AdamW>(torch::optim::AdamWOptions(1e-2), false);
}

}  // namespace
}  // namespace ddp::testing
