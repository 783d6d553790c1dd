#include "core/service_thread.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace ddp {
namespace {

using namespace std::chrono_literals;

class Counter final : public ServiceThread::Client {
 public:
  explicit Counter(
      std::optional<std::chrono::milliseconds> again, std::function<void()> work = [] {})
      : again_(again), work_(std::move(work)) {}
  std::optional<std::chrono::milliseconds> serve() noexcept override {
    work_();
    thread_ = std::this_thread::get_id();
    ++times_;
    times_.notify_all();
    return again_;
  }
  [[nodiscard]] int times() const { return times_; }
  [[nodiscard]] std::thread::id thread() const { return thread_; }
  void wait_beyond(int times) const {
    while (times_ <= times) times_.wait(times_);
  }

 private:
  std::optional<std::chrono::milliseconds> again_;
  std::function<void()> work_;
  std::atomic<int> times_{0};
  std::atomic<std::thread::id> thread_{};
};

TEST(ServiceThread, ServesAllItsClientsInOneThread) {
  ServiceThread thread;
  Counter often(1ms);
  Counter rarely(10ms);
  thread.add(often);
  thread.add(rarely);
  often.wait_beyond(3);
  rarely.wait_beyond(3);
  thread.remove(often);
  thread.remove(rarely);
  EXPECT_EQ(often.thread(), rarely.thread());
  EXPECT_NE(often.thread(), std::this_thread::get_id());
}

TEST(ServiceThread, WhatAsksForNoTimeIsServedAtTheNextCall) {
  ServiceThread thread;
  Counter sleeper(std::nullopt);
  thread.add(sleeper);
  sleeper.wait_beyond(0);
  int const before = sleeper.times();
  thread.wake(sleeper);
  sleeper.wait_beyond(before);
  thread.remove(sleeper);
}

TEST(ServiceThread, WhatHasLeftIsNotServedAndOthersAre) {
  ServiceThread thread;
  Counter leaves(1ms);
  Counter stays(1ms);
  thread.add(leaves);
  thread.add(stays);
  leaves.wait_beyond(0);
  thread.remove(leaves);
  int const served = leaves.times();
  stays.wait_beyond(stays.times() + 2);
  EXPECT_EQ(leaves.times(), served);
  thread.remove(stays);
}

TEST(ServiceThread, OneThatIsBeingServedKeepsNoOtherFromLeaving) {
  ServiceThread thread;
  std::promise<void> began;
  std::promise<void> go_on;
  Counter blocked(std::nullopt, [&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    began.set_value();
    go_on.get_future().wait();
  });
  Counter other(std::nullopt);
  thread.add(blocked);
  began.get_future().wait();
  thread.add(other);
  auto leaving = std::async(std::launch::async, [&] { thread.remove(blocked); });
  EXPECT_EQ(leaving.wait_for(10ms), std::future_status::timeout) << "it is still being served";
  thread.remove(other);
  go_on.set_value();
  leaving.wait();
}

TEST(ServiceThread, EndsWithItsLastClientAndBeginsAnew) {
  ServiceThread thread;
  for (int i = 0; i < 20; ++i) {
    Counter counter(1ms);
    thread.add(counter);
    counter.wait_beyond(0);
    thread.remove(counter);
  }
}

TEST(ServiceThread, ClientsComeAndGoInManyThreads) {
  ServiceThread thread;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        Counter counter(1ms);
        thread.add(counter);
        counter.wait_beyond(0);
        thread.remove(counter);
      }
    });
  }
  for (std::thread& each : threads) each.join();
}

}  // namespace
}  // namespace ddp
