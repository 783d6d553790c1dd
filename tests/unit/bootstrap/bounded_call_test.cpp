// Calls that hang, with bounds short enough for a test.
#include "bootstrap/bounded_call.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

[[noreturn]] void hang() {
  for (;;) std::this_thread::sleep_for(1h);
}

// What a rank says of its end, on the standard output of a death test's process.
class Reports final : public ControlPlane {
 public:
  [[nodiscard]] Rank rank() const noexcept override { return Rank{0}; }
  [[nodiscard]] int size() const noexcept override { return 1; }
  void put(std::string_view /*key*/, std::string_view /*value*/) override {}
  [[nodiscard]] std::string get(std::string_view /*key*/, Deadline /*deadline*/) override { return {}; }
  [[nodiscard]] std::vector<std::string> all_gather(std::string_view /*name*/, std::string_view value,
                                                    std::span<Rank const> /*group*/,
                                                    Deadline /*deadline*/) override {
    return {std::string(value)};
  }
  [[nodiscard]] std::vector<Failure> lost() const override { return {}; }
  void report_error(Failure const& failure) noexcept override {
    std::fprintf(stderr, "reported %s: %s\n",
                 failure.code == ErrorCode::aborted ? "aborted" : "something else",
                 to_string(failure).c_str());
  }
  void report_progress(Progress const& /*progress*/) noexcept override {}
  void leave() noexcept override {}
};

TEST(CallWithin, SaysWhetherTheCallHasReturned) {
  auto const done = std::make_shared<std::atomic<bool>>(false);
  EXPECT_TRUE(call_within(1min, [done] { *done = true; }));
  EXPECT_TRUE(*done);

  // The thread that is left behind owns what it uses.
  auto const let_go = std::make_shared<std::promise<void>>();
  auto const gone = std::make_shared<std::promise<void>>();
  EXPECT_FALSE(call_within(10ms, [let_go, gone] {
    let_go->get_future().wait();
    gone->set_value();
  }));
  let_go->set_value();
  gone->get_future().wait();
}

TEST(CallWithin, PassesOnWhatTheCallThrows) {
  auto const error = error_of(
      [] { static_cast<void>(call_within(1min, [] { throw Error(ErrorCode::io, "no such luck"); })); });
  EXPECT_EQ(error.code(), ErrorCode::io);
}

// Says where it was destroyed.
struct Thrown {
  ~Thrown() { destroyed_in = std::this_thread::get_id(); }
  static inline std::atomic<std::thread::id> destroyed_in;
};

// Owned by a call, which so goes no earlier than `let_go`, or after ten seconds; says in which thread.
class Owned {
 public:
  Owned(std::future<void> let_go, std::shared_ptr<std::promise<std::thread::id>> gone)
      : let_go_(std::move(let_go)), gone_(std::move(gone)) {}
  ~Owned() {
    static_cast<void>(let_go_.wait_for(10s));
    gone_->set_value(std::this_thread::get_id());
  }
  Owned(Owned const&) = delete;
  Owned& operator=(Owned const&) = delete;

 private:
  std::future<void> let_go_;
  std::shared_ptr<std::promise<std::thread::id>> gone_;
};

TEST(CallWithin, WhatTheCallThrewIsTheWaitingThreadsAndTheCallItsOwnThreads) {
  std::promise<void> let_go;
  auto const gone = std::make_shared<std::promise<std::thread::id>>();
  EXPECT_THROW(static_cast<void>(call_within(
                   1min, [owned = std::make_shared<Owned>(let_go.get_future(), gone)] { throw Thrown{}; })),
               Thrown);
  EXPECT_EQ(Thrown::destroyed_in.load(), std::this_thread::get_id());
  let_go.set_value();
  EXPECT_NE(gone->get_future().get(), std::this_thread::get_id());
}

TEST(CallOrLeave, RunsTheCallInTheCallingThreadAndGoesOn) {
  Reports control;
  std::thread::id ran_in;
  call_or_leave(
      1min, [&] { ran_in = std::this_thread::get_id(); }, control, "never said");
  EXPECT_EQ(ran_in, std::this_thread::get_id());
}

class Leaves {
 public:
  ~Leaves() { std::fputs("a destructor ran\n", stderr); }
};

// The end of a communicator of NCCL that hangs, with 30 s.
TEST(CallOrLeaveDeathTest, F8ACallThatHangsIsReportedAndEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static Leaves const destructor;
        Reports control;
        call_or_leave(
            20ms, [] { hang(); }, control, "rank 3 leaves: the end has not come");
      },
      ::testing::ExitedWithCode(1), "reported aborted: rank 3 leaves: the end has not come\n$");
}

}  // namespace
}  // namespace ddp::testing
