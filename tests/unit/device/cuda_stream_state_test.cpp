// What waits for a GPU's stream ask, over a CUDA that is not there.
#include <gmock/gmock.h>

#include <cstdlib>
#include <future>
#include <thread>

#include "device/cuda/stream/stream_state.hpp"
#include "support/errors.hpp"
#include "support/fakes/fake_cuda_events.hpp"

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

class Failed final : public StreamWatch {
 public:
  void check() const override { throw CommError(ErrorCode::peer_lost, "rank 3 was killed"); }
};

TEST(CudaStream, R26ForgetsFailuresThatARebuildHasDealtWithAndNoOthers) {
  State stream(Device{}, nullptr, false);
  auto const lives = std::make_shared<Counter>();
  lives->enqueue(5);
  stream.watches().add(lives);
  stream.watches().add(std::make_shared<Failed>());
  EXPECT_THROW(stream.watches().check(), CommError);
  EXPECT_TRUE(stream.watches().forget_failed());
  EXPECT_FALSE(stream.watches().forget_failed()) << "once";
  EXPECT_NO_THROW(stream.watches().check());
  EXPECT_EQ(stream.watches().dues().size(), 1U);
}

// A13
TEST(CudaStream, AStreamOfTheCpuIsRefusedWithWhatThisProcessSeesAndWhatToDo) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  auto const stream = make_compute_stream(Device{});
  auto const error = error_of([&] { static_cast<void>(cuda_stream(*stream)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("expected a stream of a GPU, found one of cpu:0"));
  EXPECT_THAT(error.what(), HasSubstr("CUDA_VISIBLE_DEVICES= leaves 0 logical devices ("));
  EXPECT_THAT(error.what(), HasSubstr("ddp-launch --check"));
  EXPECT_THAT(error.what(), HasSubstr("World::device()"));
}

void settle(State& stream, std::vector<StreamWatches::Due> const& dues) {
  for (StreamWatches::Due const due : dues) stream.watches().settle(due);
}
void settle(State& stream) { settle(stream, stream.watches().dues()); }

// Says that it is over, and looks at the stream when it ends.
class Looking final : public StreamWatch {
 public:
  Looking(State& stream, bool& ended) : stream_(stream), ended_(ended) {}
  ~Looking() override {
    static_cast<void>(stream_.watches().dues());
    ended_ = true;
  }
  Looking(Looking const&) = delete;
  Looking& operator=(Looking const&) = delete;
  void check() const override {}
  void settle(std::uint64_t /*through*/) const override {
    stream_.watches().add(std::make_shared<Counter>());  // which forgets what is over
    EXPECT_FALSE(ended_) << "it ends while it is asked";
  }
  [[nodiscard]] bool is_over() const noexcept override { return true; }

 private:
  State& stream_;
  bool& ended_;
};

class Failing final : public StreamWatch {
 public:
  void check() const override { throw CommError(ErrorCode::peer_lost, "rank 3 is gone"); }
};

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
  stream_.watches().add(work_);
  work_->enqueue(3);
  auto const dues = stream_.watches().dues();
  work_->enqueue(4);
  settle(stream_, dues);
  EXPECT_THAT(work_->settled(), ElementsAre(3));
  settle(stream_);
  EXPECT_THAT(work_->settled(), ElementsAre(7));
}

TEST_F(StreamState, AStreamThatWaitedSettlesWhatWasThereThen) {
  stream_.watches().add(work_);
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
  stream_.watches().add(work_);
  work_->enqueue(3);
  stream_.order_before(behind_);
  work_->enqueue(1);
  behind_.order_before(stream_);
  settle(stream_);
  EXPECT_THAT(work_->settled(), ElementsAre(4));
}

TEST_F(StreamState, WorkThatMovesToAnotherStreamLeavesWhatItDid) {
  stream_.watches().add(work_);
  work_->enqueue(3);
  stream_.watches().leave(*work_);
  behind_.watches().add(work_);
  work_->enqueue(2);
  settle(stream_);
  settle(behind_);
  EXPECT_THAT(work_->settled(), ElementsAre(3, 5));
  behind_.watches().leave(*work_);
  stream_.watches().add(work_);
  work_->enqueue(1);
  settle(stream_);
  settle(behind_);
  EXPECT_THAT(work_->settled(), ElementsAre(6, 5));
}

TEST_F(StreamState, WhatIsOverIsForgottenAndAWaitForItSettlesNothingElse) {
  stream_.watches().add(work_);
  work_->enqueue(3);
  auto const dues = stream_.watches().dues();
  work_->end();
  auto const next = std::make_shared<Counter>();
  stream_.watches().add(next);
  next->enqueue(1);
  settle(stream_, dues);
  EXPECT_THAT(work_->settled(), IsEmpty());
  EXPECT_THAT(next->settled(), IsEmpty());
}

TEST_F(StreamState, DuesAreThoseOfEveryPlace) {
  stream_.watches().add(work_);
  stream_.watches().add(std::make_shared<Counter>());
  work_->enqueue(3);
  auto const dues = stream_.watches().dues();
  ASSERT_EQ(dues.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(stream_.watches().due(i).value().watch, dues[i].watch);
    EXPECT_EQ(stream_.watches().due(i).value().through, dues[i].through);
  }
  EXPECT_EQ(dues[1].through, 3U) << "the latest is asked first";
  EXPECT_FALSE(stream_.watches().due(2));
}

// A watch may free memory, which waits for the GPU: not under a lock that a host stream takes, and not in its
// thread.
TEST_F(StreamState, AWatchEndsOutsideOfTheLockAndNotWhereItIsAsked) {
  bool ended = false;
  stream_.watches().add(std::make_shared<Looking>(stream_, ended));
  settle(stream_);
  EXPECT_FALSE(ended);
  stream_.watches().add(work_);
  EXPECT_TRUE(ended);
}

TEST_F(StreamState, AWaitThatIsOverAtOnceStillThrowsAFailure) {
  stream_.watches().add(std::make_shared<Failing>());
  auto const error = error_of<CommError>([&] { stream_.wait_for(0, State::Questions::aside); });
  EXPECT_THAT(error.what(), HasSubstr("rank 3 is gone"));
}

class StreamBehindAFailure : public StreamState {
 protected:
  StreamBehindAFailure() {
    stream_.watches().add(failed_->watch());
    stream_.order_before(behind_);
    failed_->enqueue([] { throw CommError(ErrorCode::aborted, "the data of rank 0 is broken"); });
    EXPECT_THROW(failed_->synchronize(), CommError);
  }
  static void wait(State& stream) {
    stream.watches().forget();
    stream.wait_for(0, State::Questions::aside);
  }
  std::unique_ptr<HostStream> failed_ = std::make_unique<HostStream>();
};

// R22
TEST_F(StreamBehindAFailure, ItIsForgottenWhenTheProgramKnowsAndTheGroupIsGone) {
  failed_->watch()->program_knows();
  EXPECT_THROW(wait(stream_), CommError) << "the group is still there";
  failed_.reset();
  for (State* const each : {&stream_, &behind_}) EXPECT_NO_THROW(wait(*each));
}

TEST_F(StreamBehindAFailure, EachStreamThrowsItOnceThoughTheGroupIsGone) {
  failed_.reset();
  for (State* const each : {&stream_, &behind_}) {
    auto const error = error_of<CommError>([&] { wait(*each); });
    EXPECT_THAT(error.what(), HasSubstr("the data of rank 0 is broken"));
  }
  stream_.order_before(last_);
  for (State* const each : {&stream_, &behind_, &last_}) EXPECT_NO_THROW(wait(*each));
}

TEST_F(StreamState, WhatIsOverIsNotPassedOn) {
  stream_.watches().add(work_);
  work_->end();
  stream_.order_before(behind_);
  EXPECT_THAT(behind_.watches().dues(), IsEmpty());
}

// Fails when it is asked again.
class FailsLater final : public StreamWatch {
 public:
  void check() const override {
    if (++asked_ > 1) throw CommError(ErrorCode::peer_lost, "rank 2 is gone too");
  }

 private:
  mutable int asked_ = 0;
};

class StreamThatForgets : public StreamState {
 protected:
  CudaStream stream_{std::make_shared<State>(Device{}, nullptr, false)};
};

TEST_F(StreamThatForgets, R26FailuresThatComeOneAfterAnother) {
  stream_.watch(std::make_shared<FailsLater>());
  stream_.watch(std::make_shared<Failing>());
  EXPECT_TRUE(forget_failures(stream_));
  EXPECT_NO_THROW(stream_.synchronize());
}

TEST_F(StreamThatForgets, R26NotThoseOfTheGpu) {
  fake_cuda::set_broken(true);
  EXPECT_FALSE(forget_failures(stream_));
  EXPECT_EQ(error_of<Error>([&] { stream_.synchronize(); }).code(), ErrorCode::device);
}

// A first wait ends after a minute; a second one would not.
TEST_F(StreamThatForgets, R26ASecondWaitForAGpuThatHangsIsNotBegun) {
  auto const work = std::make_shared<Counter>();
  work->enqueue(1);
  stream_.watch(work);
  stream_.watch(std::make_shared<Failing>());
  fake_cuda::set_done(false);
  EXPECT_FALSE(forget_failures(stream_));
  EXPECT_THAT(work->settled(), IsEmpty());
}

// While one thread launches into a full queue, and the GPU waits for what another does behind its wait.
TEST_F(StreamState, AWaitThatAsksAsideEndsThoughCudaDoesNotAnswer) {
  fake_cuda::set_answering(false);
  auto wait = std::async(std::launch::async, [&] { stream_.wait_for(1, State::Questions::aside); });
  EXPECT_EQ(wait.wait_for(2s), std::future_status::timeout);  // it has asked
  std::atomic_ref(stream_.words()[0]).store(1);               // the GPU's word
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
