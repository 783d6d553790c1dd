#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ddp/device/event.hpp"
#include "ddp/device/stream.hpp"
#include "device/stream/stream_watch.hpp"

namespace ddp {
namespace {

TEST(HostStream, RunsWorkInOrder) {
  HostStream stream;
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) stream.enqueue([&seen, i] { seen.push_back(i); });
  stream.synchronize();
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(HostStream, InlineStreamRunsInTheCallerAtOnce) {
  auto const stream = HostStream::inline_stream();
  std::thread::id where;
  stream->enqueue([&where] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_TRUE(stream->is_inline());
  EXPECT_THROW(stream->enqueue([] { throw std::runtime_error("now"); }), std::runtime_error);
}

TEST(HostStream, DeferredWorkRunsInTheThreadThatWaits) {
  HostStream stream;
  std::thread::id where;
  stream.expect_wait();
  stream.enqueue([&where] { where = std::this_thread::get_id(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(where, std::thread::id{}) << "the worker was woken";
  stream.synchronize();
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(HostStream, AHintHoldsUntilTheNextWaitOnly) {
  HostStream stream;
  stream.expect_wait();
  stream.synchronize();
  std::atomic<bool> ran{false};
  stream.enqueue([&ran] { ran = true; });
  for (int i = 0; i < 2000 && !ran; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(ran) << "the worker slept on";
  stream.synchronize();
}

TEST(HostStream, KeepsItsFirstExceptionAndSkipsWhatIsBehind) {
  HostStream stream;
  std::atomic<bool> ran{false};
  stream.enqueue([] { throw std::runtime_error("first"); });
  stream.enqueue([&ran] { ran = true; });
  stream.enqueue([] { throw std::runtime_error("second"); });
  for (int i = 0; i < 2; ++i) {
    try {
      stream.synchronize();
      FAIL() << "no exception";
    } catch (std::runtime_error const& error) {
      EXPECT_STREQ(error.what(), "first");
    }
  }
  EXPECT_FALSE(ran);
}

TEST(HostStream, WaitsForWhatAnotherStreamHasSoFar) {
  HostStream first;
  HostStream second;
  std::atomic<int> stage{0};
  std::atomic<bool> go{false};
  first.enqueue([&] {
    while (!go) std::this_thread::yield();
    stage = 1;
  });
  second.wait(first);
  int seen = -1;
  second.enqueue([&] { seen = stage; });
  go = true;
  second.synchronize();
  EXPECT_EQ(seen, 1);
}

TEST(HostStream, AStreamMayGoBeforeOneThatWaitsForIt) {
  HostStream second;
  int seen = 0;
  int done = 0;
  {
    HostStream first;
    first.enqueue([&done] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done = 1;
    });
    second.wait(first);
    second.expect_wait();
    second.enqueue([&seen, &done] { seen = done; });
  }
  second.synchronize();
  EXPECT_EQ(seen, 1);
}

TEST(HostStream, AnInlineStreamThatWaitsBlocksTheCallerAndPassesTheExceptionOn) {
  HostStream worker;
  auto const caller = HostStream::inline_stream();
  bool done = false;
  worker.enqueue([&done] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  caller->wait(worker);
  EXPECT_TRUE(done);
  worker.enqueue([] { throw std::runtime_error("passed on"); });
  EXPECT_THROW(caller->wait(worker), std::runtime_error);
}

TEST(HostStream, ItsWatchIsOverWhenItEndedWithoutAFailureOrTheProgramKnows) {
  auto well = std::make_unique<HostStream>();
  auto broken = std::make_unique<HostStream>();
  auto const first = well->watch();
  auto const second = broken->watch();
  broken->enqueue([] { throw std::runtime_error("first"); });
  EXPECT_THROW(broken->synchronize(), std::runtime_error);
  EXPECT_FALSE(first->is_over());
  well.reset();
  broken.reset();
  EXPECT_TRUE(first->is_over());
  EXPECT_TRUE(second->has_ended());
  EXPECT_FALSE(second->is_over());
  second->program_knows();
  EXPECT_TRUE(second->is_over());
}

TEST(HostStream, DestructionRunsWhatIsLeft) {
  int ran = 0;
  {
    HostStream stream;
    for (int i = 0; i < 100; ++i) stream.enqueue([&ran] { ++ran; });
    stream.expect_wait();
    stream.enqueue([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 101);
}

TEST(Event, HoldsNothingBeforeItsFirstRecord) {
  Event event{Device{}};
  HostStream stream;
  bool ran = false;
  event.block(stream);
  stream.enqueue([&ran] { ran = true; });
  stream.synchronize();
  EXPECT_TRUE(ran);
  auto const here = HostStream::inline_stream();
  event.record(*here);
  EXPECT_TRUE(event.reached());
  event.block(*here);  // reached: at once
}

TEST(Event, HoldsTheCallerWhereAStreamIsTheCaller) {
  // Outlives the stream's work: being past an event is not yet being told that it is reached.
  Event event{Device{}};
  HostStream stream;
  std::atomic<bool> done = false;
  stream.enqueue([&done] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  event.record(stream);
  event.block(*HostStream::inline_stream());
  EXPECT_TRUE(done);
}

TEST(Event, HoldsAnotherStreamThoughTheCallerWasToWaitForTheFirst) {
  Event event{Device{}};
  HostStream stream;
  HostStream held;
  bool ran = false;
  stream.expect_wait();
  stream.enqueue([&ran] { ran = true; });
  event.record(stream);
  event.block(held);
  held.synchronize();
  EXPECT_TRUE(ran);
  stream.synchronize();
}

TEST(Event, AMarkOfASlowerStreamThatComesLastHoldsNobodyForEver) {
  HostStream slow;
  HostStream fast;
  HostStream held;
  std::atomic<bool> open = false;
  slow.enqueue([&open] {
    while (!open) std::this_thread::yield();
  });
  Event event{Device{}};
  event.record(slow);
  event.record(fast);
  fast.synchronize();
  open = true;
  slow.synchronize();
  event.block(held);
  held.synchronize();
  EXPECT_TRUE(event.reached()) << "the last mark is";
}

// Sanitizers look at the memory.
TEST(Event, MayGoWhenItIsReached) {
  HostStream stream;
  for (int i = 0; i < 200; ++i) {
    auto event = std::make_unique<Event>(Device{});
    event->record(stream);
    while (!event->reached()) std::this_thread::yield();
    event.reset();
  }
  stream.synchronize();
}

}  // namespace
}  // namespace ddp
