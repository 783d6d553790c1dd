// When a watchdog gives up, over an NCCL and a CUDA that are not there.
#include <gmock/gmock.h>

#include <barrier>
#include <filesystem>
#include <iterator>

#include "support/fakes/nccl_watchdog_ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Those of this process.
std::size_t threads() {
  std::filesystem::directory_iterator const tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

// Threads that have nothing left to do may take a moment to end.
bool comes_to(std::size_t count) {
  Deadline const give_up = Deadline::after(30s);
  while (threads() > count && !give_up.expired()) std::this_thread::sleep_for(1ms);
  return threads() <= count;
}

TEST_F(Watchdog, F8NamesTheOperationAndTheRankAtTheDeadline) {
  on_one_of_two(200ms, [](NcclWatchdog& watchdog, CudaStream& stream) {
    int const open = fake_nccl::open_communicators();
    call(watchdog, stream);
    auto const error = failure_of(watchdog, open);
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 waited 0.2 s in operation 1, barrier for rank 1"));
    EXPECT_THROW(call(watchdog, stream), CommError);
  });
  EXPECT_TRUE(is_over_) << "the program knows";
}

TEST_F(Watchdog, StreamsMustNotForgetAFailureThatTheProgramDoesNotKnowOf) {
  on_one_of_two(10min, [](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream);
    watchdog.fail({.code = ErrorCode::peer_lost, .detail = "rank 1 is gone"});
  });
  EXPECT_FALSE(is_over_);
}

// A call of NCCL that has begun ends with an error of its own when the watchdog aborts: the failure is behind
// it.
TEST_F(Watchdog, StreamsMayForgetAFailureThatACallOfTheProgramThrew) {
  using Throws = void (*)(NcclWatchdog&);
  for (Throws const throws :
       {Throws([](NcclWatchdog& watchdog) { watchdog.fail_call(ncclInternalError, "an all-reduce"); }),
        Throws([](NcclWatchdog& watchdog) { watchdog.settle_step(); }),
        Throws([](NcclWatchdog& watchdog) { watchdog.finish_operations("split"); })}) {
    on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
      call(watchdog, stream);
      watchdog.fail({.code = ErrorCode::aborted, .detail = "the data is broken"});
      auto const error = error_of<CommError>([&] { throws(watchdog); });
      EXPECT_THAT(error.what(), HasSubstr("the data is broken"));
    });
    EXPECT_TRUE(is_over_);
  }
}

TEST_F(Watchdog, StreamsMayForgetOneThatEndedInOrder) {
  on_ranks(2, 10s, [](NcclConnection connection, int) {
    auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
    watchdog->start();
    EXPECT_FALSE(watchdog->is_over());
    watchdog->close();
    EXPECT_TRUE(watchdog->is_over());
  });
}

// As NCCL, the fake one waits at the end for the other ranks, without a limit.
TEST_F(Watchdog, RanksMeetAtTheEndAndOneThatComesLongBeforeLeavesAlone) {
  for (bool const late : {false, true}) {
    std::latch gone(1);
    on_ranks(2, late ? 300ms : 10s, [&](NcclConnection connection, int rank) {
      auto const calls = connection.calls;
      auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
      watchdog->start();
      if (late && rank == 1) gone.wait();
      watchdog->close();
      if (rank == 0) gone.count_down();
      EXPECT_EQ(calls->end(), late ? PublishedCalls::End::alone : PublishedCalls::End::together);
      EXPECT_TRUE(watchdog->is_over());
      EXPECT_NO_THROW(watchdog->check());
      EXPECT_EQ(*commits_->poisoned(), 0U) << "no step was ended";
    });
  }
}

TEST_F(Watchdog, AllCommunicatorsOfAProcessShareTwoThreads) {
  std::barrier together(3);
  on_ranks(3, 10s, [&](NcclConnection connection, int rank) {
    std::size_t const before = threads();
    together.arrive_and_wait();
    auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
    watchdog->start();
    together.arrive_and_wait();
    if (rank == 0) {
      EXPECT_TRUE(comes_to(before + 2)) << threads() << " threads, " << before << " before";
    }
    together.arrive_and_wait();
    watchdog->close();
    together.arrive_and_wait();
    if (rank == 0) {
      EXPECT_TRUE(comes_to(before)) << threads() << " threads, " << before << " before";
    }
    together.arrive_and_wait();
  });
}

TEST_F(Watchdog, F8KeepsItsDeadlineThoughCudaDoesNotAnswer) {
  on_one_of_two(200ms, [](NcclWatchdog& watchdog, CudaStream& stream) {
    int const open = fake_nccl::open_communicators();
    call(watchdog, stream);
    fake_cuda::set_answering(false);
    EXPECT_EQ(failure_of(watchdog, open).code(), ErrorCode::timeout);
  });
}

TEST_F(Watchdog, F1SeesARankDieThoughCudaDoesNotAnswer) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    int const open = fake_nccl::open_communicators();
    call(watchdog, stream);
    fake_cuda::set_answering(false);
    std::this_thread::sleep_for(30ms);  // a look is on its way
    lose(1);
    auto const error = failure_of(watchdog, open);
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is gone (the test says so)"));
  });
}

TEST_F(Watchdog, AbortsForAFailureThoughCudaDoesNotAnswer) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    int const open = fake_nccl::open_communicators();
    call(watchdog, stream);
    fake_cuda::set_answering(false);
    watchdog.fail({.code = ErrorCode::aborted, .detail = "the user pressed stop"});
    EXPECT_THAT(failure_of(watchdog, open).what(), HasSubstr("the user pressed stop"));
  });
}

// The kernels of an operation return when it is aborted, and what comes behind them on the GPU runs.
TEST_F(Watchdog, R26TellsOfAFailureBeforeItAborts) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    int const open = fake_nccl::open_communicators();
    call(watchdog, stream);
    EXPECT_EQ(*commits_->poisoned(), 0U);
    watchdog.fail({.code = ErrorCode::aborted, .detail = "the user pressed stop"});
    Deadline const give_up = Deadline::after(30s);
    while (fake_nccl::open_communicators() == open && !give_up.expired()) std::this_thread::yield();
    EXPECT_NE(*commits_->poisoned(), 0U);
  });
}

// An operation that is seen to stand behind other work is not late; if nothing is seen any more it may be.
TEST_F(Watchdog, CountsNoTimeBehindOtherWorkUnlessCudaDoesNotAnswer) {
  on_one_of_two(150ms, [](NcclWatchdog& watchdog, CudaStream& stream) {
    int const open = fake_nccl::open_communicators();
    fake_cuda::set_done(false);
    call(watchdog, stream);
    std::this_thread::sleep_for(600ms);
    EXPECT_NO_THROW(watchdog.check());
    fake_cuda::set_answering(false);
    EXPECT_EQ(failure_of(watchdog, open).code(), ErrorCode::timeout);
  });
}

TEST_F(Watchdog, F8MeetsTheDeadlineOfAGroupWithMoreOperationsThanAreRemembered) {
  on_one_of_two(200ms, [](NcclWatchdog& watchdog, CudaStream& stream) {
    int const open = fake_nccl::open_communicators();
    call(watchdog, stream, 3 * static_cast<int>(PublishedCalls::kRecords));
    auto const error = failure_of(watchdog, open);
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("barrier for rank 1"));
  });
}

}  // namespace
}  // namespace ddp::testing
