// Calls that hang, with bounds short enough for a test.
#include "bootstrap/bounded_call.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

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
