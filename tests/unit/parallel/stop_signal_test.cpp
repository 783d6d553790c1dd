// Ranks agree on the step at which they stop.
#include "ddp/parallel/stop_signal.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

/// Runs as one rank: steps of `step_time` until it stops, or `most`. At step `signalled`, raises SIGTERM.
std::uint64_t run(World const& world, std::uint64_t signalled, std::chrono::microseconds step_time,
                  int signal) {
  StopSignal stop(world);
  for (std::uint64_t step = 1; step <= 100000; ++step) {
    std::this_thread::sleep_for(step_time);
    if (step == signalled) std::raise(signal);
    if (auto const got = stop.after_step()) {
      EXPECT_EQ(*got, signal);
      EXPECT_EQ(stop.after_step(), got) << "from then on always";
      return step;
    }
  }
  return 0;
}

TEST(StopSignal, ARankStopsSoonAfterTheSignalAndNotWithout) {
  for (int const signal : {SIGTERM, SIGINT}) {
    auto const worlds = World::in_process(1);
    std::uint64_t const stopped = run(worlds[0], 300, 1ms, signal);
    EXPECT_GE(stopped, 300U);
    EXPECT_LE(stopped, 600U) << "checks are about 0.1 s apart";
  }
}

TEST(StopSignal, PutsBackWhatWasInstalledBefore) {
  std::signal(SIGTERM, SIG_IGN);
  {
    auto const worlds = World::in_process(1);
    StopSignal const stop(worlds[0]);
    struct sigaction now {};
    sigaction(SIGTERM, nullptr, &now);
    EXPECT_NE(now.sa_handler, SIG_IGN);
    EXPECT_EQ(error_of([&] { StopSignal const second(worlds[0]); }).code(), ErrorCode::invalid_state);
  }
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace
}  // namespace ddp::testing
