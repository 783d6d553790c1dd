// A traced communicator is the one that it wraps, and shows what ran when.
#include "comm/tracing_communicator.hpp"

#include <gmock/gmock.h>

#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/contract_threads.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/trace_file.hpp"

namespace ddp::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The whole contract through the decorator, with ranks that are threads.
class TracingContract : public ::testing::TestWithParam<ThreadedCase> {};

TEST_P(TracingContract, HoldsThroughTheDecorator) {
  TemporaryFolder const folder;
  std::vector<std::shared_ptr<ChromeTrace>> traces;
  for (Rank const rank : all_ranks(std::get<0>(GetParam()))) {
    traces.push_back(std::make_shared<ChromeTrace>(folder.path(), rank, text("rank ", rank)));
  }
  run_contract_case(GetParam(), [&](int size, std::chrono::milliseconds timeout) {
    auto communicators = make_in_process_communicators(size, {.timeout = timeout});
    for (std::size_t r = 0; r < communicators.size(); ++r) {
      communicators[r] = TracingCommunicator::wrap(std::move(communicators[r]), traces[r]);
    }
    return communicators;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TracingContract,
                         ::testing::Combine(::testing::Values(1, 3),
                                            ::testing::ValuesIn(communicator_contract())),
                         name_of);

class TracingCommunicatorTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path file(int rank = 0) const {
    return folder_.path() / text("rank", rank, ".json");
  }
  [[nodiscard]] std::unique_ptr<Communicator> traced() const {
    return TracingCommunicator::wrap(std::move(make_in_process_communicators(1).front()),
                                     std::make_shared<ChromeTrace>(folder_.path(), Rank{0}, "rank 0"));
  }
  TemporaryFolder folder_;
  HostStream stream_;
  std::array<float, 6> elements_{1, 2, 3, 4, 5, 6};
  TensorView const tensor_ = view_of(std::span<float>(elements_));
};

TEST_F(TracingCommunicatorTest, ShowsEachOperationWithItsBytes) {
  {
    auto const communicator = traced();
    communicator->all_reduce(tensor_, ReduceOp::sum(), stream_);
    communicator->all_gather(tensor_, tensor_, stream_);
    communicator->barrier(stream_);
    stream_.synchronize();
  }
  auto const spans = spans_of(file());
  EXPECT_THAT(names_of(file()), ElementsAre("all_reduce", "all_gather", "barrier"));
  EXPECT_EQ(spans.at(0).at("args"), json::parse(R"({"bytes": 24, "dtype": "f32"})"));
  EXPECT_EQ(spans.at(0).at("cat"), "communication");
  EXPECT_FALSE(spans.at(2).contains("args"));
  EXPECT_EQ(elements_[5], 6) << "the sum over one rank";
}

TEST_F(TracingCommunicatorTest, AGroupIsOneSpanAndTheHintNamesTheNextOneOnly) {
  {
    auto const communicator = traced();
    backend_of(*communicator).annotate("bucket", 7);
    communicator->group([&] {
      communicator->all_reduce(tensor_, ReduceOp::sum(), stream_);
      communicator->all_reduce(tensor_, ReduceOp::max(), stream_);
    });
    communicator->all_reduce(tensor_, ReduceOp::sum(), stream_);
    stream_.synchronize();
  }
  EXPECT_THAT(names_of(file()), ElementsAre("bucket 7", "all_reduce"));
  EXPECT_EQ(spans_of(file()).at(0).at("args").at("bytes"), 48);
}

TEST_F(TracingCommunicatorTest, ADiscardedGroupAndARefusedOperationLeaveNoSpan) {
  {
    auto const communicator = traced();
    auto const discard = [&] {
      backend_of(*communicator).annotate("bucket", 3);
      communicator->group([&] {
        communicator->all_reduce(tensor_, ReduceOp::sum(), stream_);
        throw Error(ErrorCode::io, "the caller's own");
      });
    };
    EXPECT_EQ(error_of(discard).code(), ErrorCode::io);
    EXPECT_EQ(error_of([&] { communicator->broadcast(tensor_, Rank{9}, stream_); }).code(),
              ErrorCode::invalid_argument);
    backend_of(*communicator).annotate("bucket", 4);
    communicator->group([] {});
    communicator->all_reduce(tensor_, ReduceOp::sum(), stream_);
    stream_.synchronize();
  }
  EXPECT_THAT(names_of(file()), ElementsAre("all_reduce"));
}

TEST_F(TracingCommunicatorTest, WhatIsSplitFromItIsTracedOnARowOfItsOwn) {
  {
    auto const communicator = traced();
    auto const child = communicator->split(all_ranks(1));
    EXPECT_EQ(child->backend(), communicator->backend());
    EXPECT_EQ(communicator->split({}), nullptr);
    child->barrier(stream_);
    stream_.synchronize();
    communicator->barrier(stream_);
    stream_.synchronize();
  }
  auto const spans = spans_of(file());
  ASSERT_EQ(spans.size(), 2U);
  json const trace = read_trace(file());
  EXPECT_EQ(name_in(trace, "thread_name", 0, spans[0].at("tid")), "communication (solo), split 1");
  EXPECT_EQ(name_in(trace, "thread_name", 0, spans[1].at("tid")), "communication (solo)");
}

TEST_F(TracingCommunicatorTest, WithoutATraceNothingIsWrapped) {
  auto inner = std::move(make_in_process_communicators(1).front());
  auto* const plain = inner.get();
  EXPECT_EQ(TracingCommunicator::wrap(std::move(inner), nullptr).get(), plain);
}

// R20: a file per rank, with every bucket of every step, in plan order, with the same results as untraced.
TEST_F(TracingCommunicatorTest, R20ATracedWorldShowsEveryBucketOfEveryRank) {
  constexpr int kRanks = 2;
  constexpr std::size_t kSteps = 3;
  auto worlds = World::in_process(kRanks, {.trace = folder_.path().string()});
  run_ranks(kRanks, [&](int rank) {
    World const world = std::move(worlds[static_cast<std::size_t>(rank)]);
    ToyModel model({16, 16, 16});
    DistributedDataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 64_B;  // a bucket for each
    DistributedDataParallel ddp(world, model.parameters(), options);
    for (std::size_t step = 0; step < kSteps; ++step) {
      model.clear_gradients();
      model.fill_gradients(rank);
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(model.gradients[1][3], ToyModel::average_gradient(1, 3, kRanks));
    }
  });
  worlds.clear();
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<std::string> buckets;
    for (json const& span : spans_of(file(rank))) {
      EXPECT_EQ(span.at("pid"), rank);
      std::string const name = span.at("name");
      if (!name.starts_with("bucket")) continue;
      buckets.push_back(name);
      if (name != "bucket 2") {
        EXPECT_EQ(span.at("args").at("bytes"), 64);
      } else {
        EXPECT_EQ(span.at("args").at("bytes"), 64 + 3) << "with the tail: a byte a parameter";
      }
    }
    EXPECT_THAT(buckets, ElementsAre("bucket 0", "bucket 1", "bucket 2", "bucket 0", "bucket 1", "bucket 2",
                                     "bucket 0", "bucket 1", "bucket 2"));
    EXPECT_THAT(read_file(file(rank)), HasSubstr("communication (in-process)"));
  }
}

TEST_F(TracingCommunicatorTest, AFolderThatCannotBeWrittenIsAnErrorBeforeAnythingRuns) {
  auto const error = error_of([] { static_cast<void>(World::in_process(1, {.trace = "/proc/none"})); });
  EXPECT_EQ(error.code(), ErrorCode::io);
}

}  // namespace
}  // namespace ddp::testing
