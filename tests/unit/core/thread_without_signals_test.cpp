// The program's signals are for the program's threads.
#include "core/system/thread_without_signals.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>

#include "bootstrap/bounded_call.hpp"
#include "core/thread_team.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {
namespace {

std::set<int> blocked_signals() {
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  std::set<int> blocked;
  for (int signal = 1; signal < 32; ++signal) {
    if (sigismember(&mask, signal) == 1) blocked.insert(signal);
  }
  return blocked;
}

/// What a thread of the library blocks, if `run(f)` calls f in one.
template <class Run>
std::set<int> blocked_in(Run const& run) {
  std::set<int> blocked;
  run([&] { blocked = blocked_signals(); });
  EXPECT_EQ(blocked_signals(), std::set<int>()) << "the caller's are as before";
  return blocked;
}

std::set<int> const kAllButFaults = [] {
  std::set<int> signals;
  for (int signal = 1; signal < 32; ++signal) signals.insert(signal);
  for (int const never : {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
    signals.erase(never);
  return signals;
}();

TEST(ThreadWithoutSignals, BlocksAllButItsOwnFaults) {
  EXPECT_EQ(blocked_in([](auto const& f) { start_thread_without_signals(f).join(); }), kAllButFaults);
  EXPECT_EQ(blocked_in([](auto const& f) { call_without_signals(f).get(); }), kAllButFaults);
}

TEST(ThreadWithoutSignals, IsThatOfAStream) {
  EXPECT_EQ(blocked_in([](auto const& f) {
              HostStream stream;
              std::atomic<bool> ran{false};
              stream.enqueue([&] {
                f();
                ran = true;
              });
              while (!ran) std::this_thread::yield();  // or this thread would do the work
              stream.synchronize();
            }),
            kAllButFaults);
}

TEST(ThreadWithoutSignals, IsThatOfABoundedCall) {
  EXPECT_EQ(blocked_in([](auto const& f) { EXPECT_TRUE(call_within(std::chrono::seconds(10), f)); }),
            kAllButFaults);
}

TEST(ThreadWithoutSignals, IsEachOneOfATeam) {
  EXPECT_EQ(blocked_in([](auto const& f) {
              ThreadTeam team(2);
              EXPECT_FALSE(team.run(2, [&](std::size_t member) {
                if (member == 1) f();
              }));
            }),
            kAllButFaults);
}

}  // namespace
}  // namespace ddp
