// A training that gets a new process in the place of a lost one (R26). Ranks are threads, on CPUs.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "libtorch/rebuild_models.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {

/// Three ranks that lose none, and three of which `victim` is lost after `steps` steps, and replaced; all go
/// on behind step 4. Returns what `describe` says of each of the six at their end. `make(world, disturbed)`
/// gives a training by pointer, `alike(training)` its Replicated.
template <class Make, class Alike, class Describe>
std::multiset<std::string> ends_with_a_newcomer(int victim, int steps, Make const& make, Alike const& alike,
                                                Describe const& describe) {
  std::mutex mutex;
  std::multiset<std::string> ends;
  auto const end = [&](auto& training) {
    while (training.done < kLast) training.step();
    training.world.barrier();
    std::lock_guard const lock(mutex);
    ends.insert(describe(training));
  };
  SurvivingRanks(3).run([&](World& world) { end(*make(world, false)); });
  SurvivingRanks ranks(3);
  std::thread other([&] {
    ranks.newcomer(victim, [&](World& world) {
      auto const training = make(world, true);
      training->step();  // so that all it has is other than what the others have
      auto const held = alike(*training);
      EXPECT_EQ(world.rank(), victim);
      EXPECT_EQ(training->done, 4);
      EXPECT_EQ(training->model.runtime().steps(), static_cast<std::uint64_t>(steps)) << "of the others";
      end(*training);
    });
  });
  ranks.run([&](World& world) {
    auto const training = make(world, true);
    auto const held = alike(*training);
    while (training->done < steps) training->step();
    meet(world);
    if (world.rank() == victim) ranks.die(world);
    world.rebuild(loss_of(world), *held);
    if (world.size() < 3) rebuild_with_newcomer(world, *held, std::atomic<bool>(false));
    EXPECT_EQ(training->done, 4);
    end(*training);
  });
  other.join();
  return ends;
}

}  // namespace ddp::testing
