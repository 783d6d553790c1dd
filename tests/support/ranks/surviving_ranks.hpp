// Ranks that are threads, of which some die and the others go on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/in_process/control.hpp"
#include "ddp/parallel/replicated.hpp"
#include "ddp/parallel/world.hpp"
#include "support/errors.hpp"
#include "support/ranks/lost_rank.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {

/// Thrown by a rank that dies.
struct Dies : std::exception {};

/// Ranks that may go on as long as `min_ranks` are left.
class SurvivingRanks {
 public:
  explicit SurvivingRanks(int size, int min_ranks = 1)
      : job_(std::make_shared<InProcessJob>(size, min_ranks)), planes_(job_->control_planes()) {}

  void run(std::function<void(World& world)> const& body,
           std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    run_ranks(job_->size(), [&](int r) {
      World world =
          World::over([&](Deadline) { return planes_[static_cast<std::size_t>(r)]; }, {.timeout = timeout});
      if (run_until_it_dies(body, std::make_unique<World>(std::move(world)))) {
        std::call_once(first_, [this] { gone_.set_value(); });
      }
    });
  }
  /// As if ddp-launch had started a new process for that rank, the only one that dies in run().
  void newcomer(int r, std::function<void(World& world)> const& body) {
    gone_.get_future().wait();
    World world = World::over([&](Deadline) { return job_->newcomer(Rank{r}, ++replacements_); },
                              {.timeout = std::chrono::seconds(60)});
    EXPECT_TRUE(world.is_newcomer());
    EXPECT_EQ(world.size(), 1);
    run_until_it_dies(body, std::make_unique<World>(std::move(world)));
  }
  /// As if the process were killed.
  [[noreturn]] void die(World const& world) {
    job_->declare_lost(killed(world.members()[world.rank().index()].value(), 9));
    throw Dies();
  }

 private:
  static bool run_until_it_dies(std::function<void(World& world)> const& body, std::unique_ptr<World> world) {
    try {
      body(*world);
      return false;
    } catch (Dies const&) {
      return true;
    }
  }

  std::shared_ptr<InProcessJob> job_;
  std::vector<std::shared_ptr<ControlPlane>> planes_;
  std::once_flag first_;
  std::promise<void> gone_;
  int replacements_ = 0;
};

/// All ranks have ended what they did before. Unlike a barrier of the communicator, which a rank may leave
/// and die while others have not noticed its end.
inline void meet(World& world) {
  static_cast<void>(world.control().all_gather(world.next_name("met"), "", world.members(),
                                               Deadline::after(std::chrono::seconds(60))));
}

/// What a collective throws when a rank is lost.
inline CommError loss_of(World const& world) {
  return error_of<CommError>([&] { static_cast<void>(world.all_reduce_scalar(1)); });
}

/// Waits for a newcomer and rebuilds with it, unless `refused` says that it came in time for an earlier
/// rebuild().
inline void rebuild_with_newcomer(World& world, Replicated& alike, std::atomic<bool> const& refused) {
  while (!world.control().interruption() && !refused) std::this_thread::yield();
  if (world.control().interruption()) {
    world.rebuild(CommError(ErrorCode::aborted, "a newcomer waits"), alike);
  }
}

}  // namespace ddp::testing
