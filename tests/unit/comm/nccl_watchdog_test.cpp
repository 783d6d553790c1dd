// When a watchdog gives up, over an NCCL and a CUDA that are not there.
#include "comm/nccl/watchdog.hpp"

#include <gmock/gmock.h>

#include <barrier>
#include <filesystem>
#include <future>
#include <iterator>
#include <latch>
#include <thread>

#include "device/cuda/stream_state.hpp"
#include "support/errors.hpp"
#include "support/fake_cuda_events.hpp"
#include "support/fake_nccl_ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

Fingerprint barrier() {
  return {0, 0, Communicator::OperationKind::barrier, DType::u8, ReduceOp::Kind::sum, false, 0};
}

Fingerprint head(std::uint64_t step, bool weighted) {
  return {0,
          4,
          Communicator::OperationKind::all_reduce,
          DType::f64,
          ReduceOp::Kind::sum,
          false,
          0,
          StepMark::of(step, weighted)};
}

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

// Two ranks, of which the first has a watchdog; the other one calls what a test says for it.
class Watchdog : public FakeNcclRanks {
 protected:
  ~Watchdog() override {
    fake_cuda::set_answering(true);
    fake_cuda::set_capturing(false);
    fake_cuda::set_done(true);
  }

  template <class Body>
  void on_one_of_two(std::chrono::milliseconds timeout, Body body) {
    std::latch ready(1);
    std::latch over(1);
    on_ranks(2, timeout, [&](NcclConnection connection, int rank) {
      auto const handles = connection.handles;
      if (rank == 1) {
        peer_ = connection.board;
        ready.count_down();
      } else {
        ready.wait();
        CudaStream stream(Device{}, nullptr);
        auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
        watchdog->start();
        body(*watchdog, stream);
        fake_cuda::set_answering(true);
        fake_cuda::set_done(true);
        watchdog->fail(ErrorCode::aborted, "the test is over");  // the first failure stays
        watchdog->close();
        is_over_ = watchdog->is_over();
        over.count_down();
      }
      over.wait();
      if (rank == 1) peer_.reset();
      handles->abort([] {});
    });
  }

  static void call(NcclWatchdog& watchdog, CudaStream& stream, int operations = 1,
                   Fingerprint const& operation = barrier()) {
    NcclWatchdog::Call call(watchdog, stream);
    for (int i = 0; i < operations; ++i) call.publish(operation);
    call.begin();
    fake_cuda::set_done(false);  // what runs waits for the other rank
  }

  /// Returns when the watchdog has given up: the failure, after the abort of both communicators.
  static CommError failure_of(NcclWatchdog const& watchdog, int open_before) {
    Deadline const give_up = Deadline::after(30s);
    while (fake_nccl::open_communicators() > open_before - 2) {
      if (give_up.expired()) {
        ADD_FAILURE() << "nothing was aborted";
        break;
      }
      std::this_thread::sleep_for(1ms);
    }
    return error_of<CommError>([&] { watchdog.check(); });
  }

  /// A wait for a stream that the GPU has passed, in another thread.
  static std::future<void> settling(NcclWatchdog const& watchdog, std::uint64_t through) {
    return std::async(std::launch::async, [&watchdog, through] { watchdog.settle(through); });
  }
  static std::future<void> finishing(NcclWatchdog const& watchdog) {
    return std::async(std::launch::async, [&watchdog] { watchdog.finish_operations("split"); });
  }
  static bool ends(std::future<void> const& work, std::chrono::milliseconds within) {
    return work.wait_for(within) == std::future_status::ready;
  }

  std::shared_ptr<PublishedCalls> peer_;
  bool is_over_ = false;  // what it says after its end
};

// CUDA may answer only after what a host stream does behind such a wait.
TEST_F(Watchdog, SettlesWhenAllHaveCalledThoughCudaDoesNotAnswer) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream, 2);
    EXPECT_EQ(watchdog.enqueued(), 2U);
    fake_cuda::set_answering(false);
    auto wait = settling(watchdog, 2);
    peer_->publish(barrier());
    EXPECT_FALSE(ends(wait, 50ms));
    peer_->publish(barrier());
    EXPECT_TRUE(ends(wait, 30s));
    fake_cuda::set_answering(true);
    EXPECT_NO_THROW(wait.get());
  });
}

TEST_F(Watchdog, SettlesNoMoreThanAWaitStandsBehind) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream);
    auto const through = watchdog.enqueued();
    call(watchdog, stream);
    peer_->publish(barrier());
    auto wait = settling(watchdog, through);
    EXPECT_TRUE(ends(wait, 30s)) << "it waits for the second operation too";
    peer_->publish(barrier());
    EXPECT_NO_THROW(wait.get());
  });
}

TEST_F(Watchdog, AWaitThatSettlesThrowsThatARankCalledSomethingElse) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream);
    auto wait = settling(watchdog, watchdog.enqueued());
    Fingerprint other = barrier();
    other.kind = Communicator::OperationKind::all_reduce;
    peer_->publish(other);
    EXPECT_TRUE(ends(wait, 30s));
    watchdog.fail(ErrorCode::aborted, "so that the wait ends");
    EXPECT_EQ(error_of<CommError>([&] { wait.get(); }).code(), ErrorCode::mismatch);
  });
}

TEST_F(Watchdog, AStreamThatItLeftSettlesWhatItDidThere) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& first) {
    auto* const own = reinterpret_cast<CUstream_st*>(&watchdog);  // any handle that is another one
    CudaStream second(std::make_shared<CudaStream::State>(Device{}, own, false));
    CudaStream alias(std::make_shared<CudaStream::State>(Device{}, own, false));
    call(watchdog, first);
    call(watchdog, second);
    EXPECT_EQ(first.state()->watches().due(0).value().through, 1U);
    EXPECT_EQ(second.state()->watches().due(0).value().through, 2U);
    call(watchdog, alias);
    EXPECT_EQ(second.state()->watches().due(0).value().through, 3U) << "it stands for the same stream";
  });
}

TEST_F(Watchdog, AStepIsSettledWhenAllRanksHaveBegunItThoughTheGpuHasDoneNothing) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream, 1, head(0, true));
    auto wait = std::async(std::launch::async, [&] { return watchdog.settle_step(); });
    EXPECT_EQ(wait.wait_for(50ms), std::future_status::timeout) << "rank 1 has not begun it";
    peer_->publish(head(0, true));
    ASSERT_EQ(wait.wait_for(30s), std::future_status::ready);
    EXPECT_TRUE(wait.get());
    call(watchdog, stream);
    EXPECT_TRUE(watchdog.settle_step()) << "of what follows in the step nothing is waited for";
    peer_->publish(barrier());
    call(watchdog, stream, 1, head(1, false));
    peer_->publish(head(1, false));
    peer_->publish(head(2, false));
    EXPECT_TRUE(watchdog.settle_step()) << "rank 1 is a step ahead";
  });
}

TEST_F(Watchdog, AStepThatRanksBeginDifferentlyIsAnErrorBeforeItsWork) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream, 1, head(3, false));
    peer_->publish(head(3, true));
    auto const error = error_of<CommError>([&] { static_cast<void>(watchdog.settle_step()); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("set_weight() was called on rank 1 and not on rank 0 in step 3"));
  });
}

TEST_F(Watchdog, AStepThatARankNeverBeginsEndsWithTheDeadline) {
  on_one_of_two(200ms, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream, 1, head(3, false));
    auto const error = error_of<CommError>([&] { static_cast<void>(watchdog.settle_step()); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("for rank 1"));
  });
}

// As a root whose GPU has sent what the other rank never asks for.
TEST_F(Watchdog, NoWaitSettlesLongerThanItLives) {
  for (bool const in_order : {true, false}) {
    std::future<void> wait;
    on_ranks(2, 10s, [&](NcclConnection connection, int rank) {
      if (rank == 1 && !in_order) {
        connection.handles->abort([] {});
        return;
      }
      auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
      watchdog->start();
      if (rank == 0) {
        wait = std::async(std::launch::async, [watchdog] { watchdog->settle(1); });
        std::this_thread::sleep_for(50ms);  // it has begun
        if (!in_order) lose(1);
      }
      watchdog->close();
    });
    EXPECT_TRUE(ends(wait, 30s)) << in_order;
    EXPECT_NO_THROW(wait.get());
  }
}

TEST_F(Watchdog, ASplitWaitsForWhatTheGpuHasNotDone) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream);
    auto wait = finishing(watchdog);
    peer_->publish(barrier());
    EXPECT_FALSE(ends(wait, 50ms));
    fake_cuda::set_done(true);
    EXPECT_TRUE(ends(wait, 30s));
    EXPECT_NO_THROW(wait.get());
  });
}

TEST_F(Watchdog, ASplitDoesNotWaitForWorkBehindAnOperationThatWasSeenDone) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream);
    peer_->publish(barrier());
    fake_cuda::set_done(true);
    std::this_thread::sleep_for(500ms);  // it looks every 10 ms
    fake_cuda::set_done(false);          // the stream has other work now
    auto wait = finishing(watchdog);
    EXPECT_TRUE(ends(wait, 30s));
    fake_cuda::set_done(true);
  });
}

TEST_F(Watchdog, AFailureEndsTheWaitOfASplit) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream);
    auto wait = finishing(watchdog);
    EXPECT_FALSE(ends(wait, 20ms));
    watchdog.fail(ErrorCode::peer_lost, "rank 1 is gone");
    EXPECT_TRUE(ends(wait, 30s));
    EXPECT_EQ(error_of<CommError>([&] { wait.get(); }).code(), ErrorCode::peer_lost);
  });
}

// An operation that stands behind other work has no deadline yet; who waits for it has.
TEST_F(Watchdog, ASplitGivesUpAtTheDeadline) {
  on_one_of_two(100ms, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    fake_cuda::set_done(false);
    call(watchdog, stream);
    auto const error = error_of<CommError>([&] { watchdog.finish_operations("split"); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("split: waited 0.1 s for operations of this communicator"));
  });
}

TEST_F(Watchdog, ASplitDuringACaptureIsRefused) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    fake_cuda::set_capturing(true);
    call(watchdog, stream);
    auto const error = error_of<Error>([&] { watchdog.finish_operations("allocate"); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_state);
    EXPECT_THAT(error.what(), HasSubstr("allocate: operations of this communicator are being captured"));
    fake_cuda::set_capturing(false);
  });
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
    watchdog.fail(ErrorCode::peer_lost, "rank 1 is gone");
  });
  EXPECT_FALSE(is_over_);
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
    watchdog.fail(ErrorCode::aborted, "the user pressed stop");
    EXPECT_THAT(failure_of(watchdog, open).what(), HasSubstr("the user pressed stop"));
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
