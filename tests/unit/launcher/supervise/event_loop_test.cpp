#include "launcher/supervise/event_loop.hpp"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <string>

namespace ddp::launcher {
namespace {

FileDescriptor event(unsigned count) { return FileDescriptor(eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK)); }

Deadline::Clock::time_point soon() { return Deadline::Clock::now() + std::chrono::milliseconds(20); }

TEST(EventLoop, CallsTheHandlersOfWhatIsReadyAndNoOthers) {
  FileDescriptor const ready = event(1);
  FileDescriptor const idle = event(0);
  std::string called;
  EventLoop loop;
  loop.watch(ready.get(), EPOLLIN, [&] { called += "ready "; });
  loop.watch(idle.get(), EPOLLIN, [&] { called += "idle "; });
  loop.wait(soon());
  EXPECT_EQ(called, "ready ");
}

TEST(EventLoop, SleepsUntilTheDeadlineAtTheLatest) {
  EventLoop loop;
  auto const until = soon();
  loop.wait(until);
  EXPECT_GE(Deadline::Clock::now(), until);
}

TEST(EventLoop, WhatOneHandlerForgetsIsNotCalledThoughItWasReady) {
  FileDescriptor first = event(1);
  FileDescriptor second = event(1);
  int calls = 0;
  EventLoop loop;
  auto const forget_other = [&](FileDescriptor& other) {
    return [&] {
      ++calls;
      loop.forget(other.get());
      other = FileDescriptor();
    };
  };
  loop.watch(first.get(), EPOLLIN, forget_other(second));
  loop.watch(second.get(), EPOLLIN, forget_other(first));
  loop.wait(soon());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, AHandlerMayForgetItself) {
  FileDescriptor const ready = event(1);
  int calls = 0;
  EventLoop loop;
  loop.watch(ready.get(), EPOLLIN, [&, seen = std::string(100, 'x')] {
    loop.forget(ready.get());
    calls += seen.size() == 100 ? 1 : 100;
  });
  loop.wait(soon());
  loop.wait(soon());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, HandlersOfTheLastTurnComeBehindAllOthers) {
  FileDescriptor const end = event(1);
  FileDescriptor const words = event(1);
  std::string order;
  EventLoop loop;
  loop.watch(
      end.get(), EPOLLIN, [&] { order += "end "; }, EventLoop::Turn::last);
  loop.watch(words.get(), EPOLLIN, [&] { order += "words "; });
  loop.wait(soon());
  EXPECT_EQ(order, "words end ");
}

}  // namespace
}  // namespace ddp::launcher
