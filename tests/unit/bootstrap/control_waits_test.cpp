// What a control plane tells of ranks that wait in it.
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <thread>

#include "support/ranks/control_jobs.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;

void expect_told(ControlJob& job) {
  Deadline const give_up = Deadline::after(std::chrono::seconds(60));
  std::thread other([&] { job.rank(1).barrier("behind the loop", give_up); });
  std::array const ranks{Rank{1}, Rank{0}};
  while (job.rank(0).waits_of(ranks) != std::vector<std::string>{"behind the loop", ""} &&
         !give_up.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(give_up.expired());
  job.rank(0).barrier("behind the loop", give_up);
  other.join();
  EXPECT_THAT(job.rank(0).waits_of(ranks), ElementsAre("", ""));
}

TEST(ControlWaits, AreToldToOtherRanks) {
  InProcessControlJob in_process(2);
  expect_told(in_process);
  LaunchedControlJob launched(2);
  expect_told(launched);
}

}  // namespace
}  // namespace ddp::testing
