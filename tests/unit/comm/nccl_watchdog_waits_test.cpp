// What waits for a watchdog, and until when, over an NCCL and a CUDA that are not there.
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <future>

#include "support/fakes/nccl_watchdog_ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

Fingerprint head(std::uint64_t step, bool weighted) {
  return {0,     4, OperationKind::all_reduce,   DType::f64, ReduceOp::Kind::sum,
          false, 0, StepMark::of(step, weighted)};
}

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
    other.kind = OperationKind::all_reduce;
    peer_->publish(other);
    EXPECT_TRUE(ends(wait, 30s));
    watchdog.fail({.code = ErrorCode::aborted, .detail = "so that the wait ends"});
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
    auto wait = std::async(std::launch::async, [&] { watchdog.settle_step(); });
    EXPECT_EQ(wait.wait_for(50ms), std::future_status::timeout) << "rank 1 has not begun it";
    peer_->publish(head(0, true));
    ASSERT_EQ(wait.wait_for(30s), std::future_status::ready);
    wait.get();
    call(watchdog, stream);
    watchdog.settle_step();  // of what follows in the step nothing is waited for
    peer_->publish(barrier());
    call(watchdog, stream, 1, head(1, false));
    peer_->publish(head(1, false));
    peer_->publish(head(2, false));
    watchdog.settle_step();  // rank 1 is a step ahead
  });
}

TEST_F(Watchdog, AStepThatRanksBeginDifferentlyIsAnErrorBeforeItsWork) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream, 1, head(3, false));
    peer_->publish(head(3, true));
    auto const error = error_of<CommError>([&] { watchdog.settle_step(); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("set_weight() was called on rank 1 and not on rank 0 in step 3"));
  });
}

TEST_F(Watchdog, AStepOfRanksAtDifferentPlacesOfTheirLoopsIsAnErrorThatNamesOne) {
  for (bool const late : {false, true}) {
    on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
      Fingerprint mine = head(3, false);
      mine.begins = StepMark::of(3, false, SinceLastStep::of(true, true));
      Fingerprint theirs = mine;
      theirs.begins = StepMark::of(3, false, SinceLastStep::of(false, true));
      call(watchdog, stream, 1, mine);
      auto const peer = std::async(std::launch::async, [&] {
        if (late) std::this_thread::sleep_for(50ms);
        peer_->publish(theirs);
      });
      if (!late) peer.wait();
      auto const error = error_of<CommError>([&] { watchdog.settle_step(); });
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_THAT(error.what(), HasSubstr("step 3: before it rank 1 changed no parameter"));
    });
  }
}

TEST_F(Watchdog, R27ASettledStepTellsWhetherARankHasLeftSomethingOutBefore) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    for (std::uint8_t const theirs : std::array<std::uint8_t, 3>{0, SinceLastStep::kLeftOut, 0}) {
      Fingerprint mine = head(3, false);
      mine.begins = StepMark::of(3, false, SinceLastStep::of(true, false));
      Fingerprint other = mine;
      other.begins = StepMark::of(3, false, {static_cast<std::uint8_t>(mine.begins.since().bits | theirs)});
      call(watchdog, stream, 1, mine);
      peer_->publish(other);
      SinceLastStep const all = watchdog.settle_step();
      EXPECT_EQ(all.left_out(), theirs != 0);
      EXPECT_EQ(all.bits, other.begins.since().bits);
    }
  });
}

TEST_F(Watchdog, AStepThatARankNeverBeginsEndsWithTheDeadline) {
  on_one_of_two(200ms, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    call(watchdog, stream, 1, head(3, false));
    auto const error = error_of<CommError>([&] { watchdog.settle_step(); });
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
    watchdog.fail({.code = ErrorCode::peer_lost, .detail = "rank 1 is gone"});
    EXPECT_TRUE(ends(wait, 30s));
    EXPECT_EQ(error_of<CommError>([&] { wait.get(); }).code(), ErrorCode::peer_lost);
  });
}

// An event that another thread records may get into a capture that the program begins at that moment.
TEST_F(Watchdog, OnlyTheThreadThatCallsRecordsEvents) {
  on_one_of_two(10min, [&](NcclWatchdog& watchdog, CudaStream& stream) {
    for (int i = 0; i < 20; ++i) {
      call(watchdog, stream);
      std::this_thread::sleep_for(20ms);  // some polls
      ASSERT_EQ(fake_cuda::last_recorder(), std::this_thread::get_id());
    }
    fake_cuda::set_done(true);
    EXPECT_NO_THROW(watchdog.finish_operations("split"));
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

}  // namespace
}  // namespace ddp::testing
