#include "core/patience.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace ddp {
namespace {

using namespace std::chrono_literals;

/// Where every look is at a time of the test's choosing.
class PatienceOf2s : public ::testing::Test {
 protected:
  Patience::Clock::duration look_after(std::chrono::milliseconds gap) {
    return patience_.waited(now_ += gap);
  }
  Patience::Clock::time_point now_{};
  Patience patience_{2s, now_};
};

TEST_F(PatienceOf2s, CountsTheTimeBetweenLooks) {
  EXPECT_EQ(look_after(0ms), 0ms);
  for (int i = 1; i <= 20; ++i) EXPECT_EQ(look_after(100ms), i * 100ms);
}

TEST_F(PatienceOf2s, HasNoEndWhereTheLongestTimeIsGiven) {
  for (auto const allowed : {Deadline::Duration::max(), Deadline::Duration(std::chrono::years(300))}) {
    Patience endless(allowed);
    EXPECT_FALSE(endless.ended());
    EXPECT_EQ(endless.nap(), Patience::kLongestNap);
    EXPECT_FALSE(Deadline::after(allowed).expired());
    EXPECT_GT(Deadline::after(allowed).remaining(), std::chrono::years(99));
    EXPECT_FALSE(Deadline::after(Deadline::bounded(allowed) * 3).expired());
  }
  EXPECT_TRUE(Deadline::after(Deadline::Duration::min()).expired());
  EXPECT_TRUE(Patience(Deadline::Duration::min()).ended());
}

// B7
TEST_F(PatienceOf2s, LeavesOutTheTimeInWhichTheProcessWasStopped) {
  EXPECT_EQ(look_after(100ms), 100ms);
  EXPECT_EQ(look_after(std::chrono::hours(1)), 100ms + Patience::kMostBetweenLooks);
  EXPECT_EQ(look_after(100ms), 200ms + Patience::kMostBetweenLooks);
}

TEST(Patience, EndsWhenItsTimeIsOver) {
  Patience patience(50ms);
  EXPECT_GT(patience.nap(), 0ms);
  for (int nap = 0; nap < 100 && !patience.ended(); ++nap) std::this_thread::sleep_for(patience.nap());
  EXPECT_TRUE(patience.ended());
  EXPECT_EQ(patience.nap(), 0ms);
  EXPECT_TRUE(Patience(Deadline::after(0ms)).ended());
}

TEST(Patience, NapsAreShorterThanWhatCountsBetweenLooks) {
  Patience patience(1h);
  EXPECT_LT(patience.nap(), Patience::kMostBetweenLooks);
}

TEST(Patience, WaitsForACondition) {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::unique_lock lock(mutex);
  EXPECT_FALSE(Patience(20ms).wait(lock, changed, [&] { return ready; }));
  std::thread other([&] {
    std::lock_guard const held(mutex);
    ready = true;
    changed.notify_one();
  });
  EXPECT_TRUE(Patience(60s).wait(lock, changed, [&] { return ready; }));
  lock.unlock();
  other.join();
  lock.lock();
  EXPECT_TRUE(Patience(0ms).wait(lock, changed, [&] { return ready; })) << "what is there needs no time";
}

}  // namespace
}  // namespace ddp
