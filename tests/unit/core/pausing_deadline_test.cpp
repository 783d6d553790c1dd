#include "core/pausing_deadline.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace ddp {
namespace {

using namespace std::chrono_literals;

/// Where every look is at a time of the test's choosing.
class PausingDeadlineOf2s : public ::testing::Test {
 protected:
  PausingDeadline::Clock::duration look_after(std::chrono::milliseconds gap) {
    return timeout_.waited(now_ += gap);
  }
  PausingDeadline::Clock::time_point now_{};
  PausingDeadline timeout_{2s, now_};
};

TEST_F(PausingDeadlineOf2s, CountsTheTimeBetweenLooks) {
  EXPECT_EQ(look_after(0ms), 0ms);
  for (int i = 1; i <= 20; ++i) EXPECT_EQ(look_after(100ms), i * 100ms);
}

TEST_F(PausingDeadlineOf2s, HasNoEndWhereTheLongestTimeIsGiven) {
  for (auto const allowed : {Deadline::Duration::max(), Deadline::Duration(std::chrono::years(300))}) {
    PausingDeadline endless(allowed);
    EXPECT_FALSE(endless.ended());
    EXPECT_EQ(endless.nap(), PausingDeadline::kLongestNap);
    EXPECT_FALSE(Deadline::after(allowed).expired());
    EXPECT_GT(Deadline::after(allowed).remaining(), std::chrono::years(99));
    EXPECT_FALSE(Deadline::after(Deadline::bounded(allowed) * 3).expired());
  }
  EXPECT_TRUE(Deadline::after(Deadline::Duration::min()).expired());
  EXPECT_TRUE(PausingDeadline(Deadline::Duration::min()).ended());
}

// B7
TEST_F(PausingDeadlineOf2s, LeavesOutTheTimeInWhichTheProcessWasStopped) {
  EXPECT_EQ(look_after(100ms), 100ms);
  EXPECT_EQ(look_after(std::chrono::hours(1)), 100ms + PausingDeadline::kMostBetweenLooks);
  EXPECT_EQ(look_after(100ms), 200ms + PausingDeadline::kMostBetweenLooks);
}

TEST(PausingDeadline, EndsWhenItsTimeIsOver) {
  PausingDeadline timeout(50ms);
  EXPECT_GT(timeout.nap(), 0ms);
  for (int nap = 0; nap < 100 && !timeout.ended(); ++nap) std::this_thread::sleep_for(timeout.nap());
  EXPECT_TRUE(timeout.ended());
  EXPECT_EQ(timeout.nap(), 0ms);
  EXPECT_TRUE(PausingDeadline(Deadline::after(0ms)).ended());
}

TEST(PausingDeadline, NapsAreShorterThanWhatCountsBetweenLooks) {
  PausingDeadline timeout(1h);
  EXPECT_LT(timeout.nap(), PausingDeadline::kMostBetweenLooks);
}

TEST(PausingDeadline, WaitsForACondition) {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::unique_lock lock(mutex);
  EXPECT_FALSE(PausingDeadline(20ms).wait(lock, changed, [&] { return ready; }));
  std::thread other([&] {
    std::lock_guard const held(mutex);
    ready = true;
    changed.notify_one();
  });
  EXPECT_TRUE(PausingDeadline(60s).wait(lock, changed, [&] { return ready; }));
  lock.unlock();
  other.join();
  lock.lock();
  EXPECT_TRUE(PausingDeadline(0ms).wait(lock, changed, [&] { return ready; }))
      << "what is there needs no time";
}

}  // namespace
}  // namespace ddp
