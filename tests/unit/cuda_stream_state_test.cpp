// What waits for a GPU's stream ask, over a CUDA that is not there.
#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "device/cuda_stream_state.hpp"
#include "support/errors.hpp"
#include "support/fake_cuda_events.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = CudaStream::State;

class Counter final : public StreamWatch {
 public:
  void check() const override {}
  [[nodiscard]] std::uint64_t enqueued() const noexcept override { return enqueued_; }
  void settle(std::uint64_t through) const override { settled_.push_back(through); }
  [[nodiscard]] bool is_over() const noexcept override { return over_; }

  void enqueue(std::uint64_t more) { enqueued_ += more; }
  void end() { over_ = true; }
  /// What waits had to settle since it was asked last.
  [[nodiscard]] std::vector<std::uint64_t> settled() const { return std::exchange(settled_, {}); }

 private:
  std::uint64_t enqueued_ = 0;
  bool over_ = false;
  mutable std::vector<std::uint64_t> settled_;
};

std::vector<State::Due> dues_of(State const& state) {
  std::vector<State::Due> dues;
  while (auto const due = state.due(dues.size())) dues.push_back(*due);
  return dues;
}

void settle(State const& state) {
  for (State::Due const& due : dues_of(state)) state.settle(due);
}

class StreamState : public ::testing::Test {
 protected:
  ~StreamState() override {
    fake_cuda::set_answering(true);
    fake_cuda::set_broken(false);
    fake_cuda::set_done(true);
  }

  State stream_{Device{}, nullptr, false};
  State behind_{Device{}, nullptr, false};
  State last_{Device{}, nullptr, false};
  std::shared_ptr<Counter> const work_ = std::make_shared<Counter>();
};

TEST_F(StreamState, AWaitSettlesWhatIsEnqueuedWhenItBegins) {
  stream_.watch(work_);
  work_->enqueue(3);
  auto const dues = dues_of(stream_);
  work_->enqueue(4);
  for (State::Due const& due : dues) stream_.settle(due);
  EXPECT_THAT(work_->settled(), ElementsAre(3));
  settle(stream_);
  EXPECT_THAT(work_->settled(), ElementsAre(7));
}

TEST_F(StreamState, AStreamThatWaitedSettlesWhatWasThereThen) {
  stream_.watch(work_);
  work_->enqueue(3);
  stream_.order_before(behind_);
  behind_.order_before(last_);
  work_->enqueue(1);
  settle(behind_);
  settle(last_);
  EXPECT_THAT(work_->settled(), ElementsAre(3, 3));
  stream_.order_before(last_);
  behind_.order_before(last_);
  settle(behind_);
  settle(last_);
  EXPECT_THAT(work_->settled(), ElementsAre(3, 4));
}

TEST_F(StreamState, AStreamThatTheWorkRunsOnSettlesAllOfItWhateverItWaitsFor) {
  stream_.watch(work_);
  work_->enqueue(3);
  stream_.order_before(behind_);
  work_->enqueue(1);
  behind_.order_before(stream_);
  settle(stream_);
  EXPECT_THAT(work_->settled(), ElementsAre(4));
}

TEST_F(StreamState, WorkThatMovesToAnotherStreamLeavesWhatItDid) {
  stream_.watch(work_);
  work_->enqueue(3);
  stream_.leave(*work_);
  behind_.watch(work_);
  work_->enqueue(2);
  settle(stream_);
  settle(behind_);
  EXPECT_THAT(work_->settled(), ElementsAre(3, 5));
  behind_.leave(*work_);
  stream_.watch(work_);
  work_->enqueue(1);
  settle(stream_);
  settle(behind_);
  EXPECT_THAT(work_->settled(), ElementsAre(6, 5));
}

TEST_F(StreamState, WhatIsOverIsForgottenAndAWaitForItSettlesNothingElse) {
  stream_.watch(work_);
  work_->enqueue(3);
  auto const dues = dues_of(stream_);
  work_->end();
  auto const next = std::make_shared<Counter>();
  stream_.watch(next);
  next->enqueue(1);
  for (State::Due const& due : dues) stream_.settle(due);
  EXPECT_THAT(work_->settled(), IsEmpty());
  EXPECT_THAT(next->settled(), IsEmpty());
}

// While one thread launches into a full queue, and the GPU waits for what another does behind its wait.
TEST_F(StreamState, AWaitThatAsksAsideEndsThoughCudaDoesNotAnswer) {
  fake_cuda::set_answering(false);
  auto wait = std::async(std::launch::async, [&] { stream_.wait_for(1, State::Questions::aside); });
  EXPECT_EQ(wait.wait_for(2s), std::future_status::timeout);  // it has asked
  std::atomic_ref(*(stream_.host_word() - 1)).store(1);       // the GPU's word, beside the host's
  EXPECT_EQ(wait.wait_for(30s), std::future_status::ready);
  fake_cuda::set_answering(true);
  EXPECT_NO_THROW(wait.get());
}

TEST_F(StreamState, AWaitThrowsTheFailureOfTheGpuHoweverItAsks) {
  fake_cuda::set_broken(true);
  for (auto const questions : {State::Questions::direct, State::Questions::aside}) {
    auto const error = error_of<Error>([&] { stream_.wait_for(1, questions); });
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_THAT(error.what(), HasSubstr("work on a GPU failed"));
  }
}

}  // namespace
}  // namespace ddp::testing
