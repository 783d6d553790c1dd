// R12 on GPUs: the first message of a step, where ranks see what the others call, and where they do not.
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator_backend.hpp"
#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "device/cuda/backend.hpp"
#include "reducer/parts/step_head.hpp"
#include "support/errors.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// A communicator whose ranks do not see what the others call, as NCCL's on several hosts.
class Unseen final : public CommunicatorBackend {
 public:
  explicit Unseen(std::unique_ptr<Communicator> inner)
      : CommunicatorBackend(inner->rank(), inner->size(), inner->device()), inner_(std::move(inner)) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return inner_->backend(); }
  [[nodiscard]] Tensor allocate(Bytes bytes) override { return inner_->allocate(bytes); }
  void check_health() const override { inner_->check_health(); }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }
  [[nodiscard]] std::uint64_t called() const noexcept override { return called_; }
  /// What this rank says from now on of all that it has called.
  void say_called(std::uint64_t called) noexcept { called_ = called; }
  [[nodiscard]] std::string why_not_recorded() const override { return {}; }
  void begin_recording(Stream& stream) override {
    CommunicatorBackend::begin_recording(stream);
    backend_of(*inner_).begin_recording(stream);
  }
  void end_recording(std::shared_ptr<RecordedGraph> const& graph) override {
    backend_of(*inner_).end_recording(graph);
    CommunicatorBackend::end_recording(graph);
  }

 private:
  void enqueue(std::span<Operation const> operations, Stream& stream) override {
    std::vector<Operation> plain(operations.begin(), operations.end());
    for (Operation& operation : plain) operation.begins = {};
    backend_of(*inner_).enqueue(plain, stream);
  }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override {
    return inner_->split(ranks);
  }

  std::unique_ptr<Communicator> inner_;
  std::uint64_t called_ = 0;
};

// The beginning of a step, on streams of its own. Returns when the GPU has left them.
void settle_step(Communicator& comm, std::uint64_t step, double weight) {
  auto const compute = make_compute_stream(world().device());
  auto const stream = make_comm_stream(world().device());
  auto const head = StepHead::make({world().device(), &backend_of(comm), compute.get(), stream.get()});
  try {
    head->begin(step, weight, {});
    comm.barrier(*stream);  // without a weight the first bucket tells, where ranks see each other
    head->settle();
  } catch (...) {
    try {
      stream->synchronize();
    } catch (Error const& again) {  // a stream throws its first failure at every wait
      EXPECT_EQ(again.code(), ErrorCode::mismatch);
    }
    throw;
  }
  stream->synchronize();
}

TEST(GpuStepHead, R12StepsThatBeginDifferentlyAreAnErrorOnEveryRankBeforeAnythingFollows) {
  if (world().size() < 2) GTEST_SKIP() << "one rank differs from nobody";
  auto const split = [] { return world().communicator().split(all_ranks(world().size())); };
  auto comm = split();
  EXPECT_NO_THROW(settle_step(*comm, 7, 2.0));
  EXPECT_NO_THROW(settle_step(*comm, 8, -1.0));
  EXPECT_THAT(message_of([&] { settle_step(*comm, 9, world().rank().value() == 0 ? 1.0 : -1.0); }),
              ContainsRegex("set_weight\\(\\) was called on rank 0 and not on rank [1-9] in step 9"));
  comm = split();
  EXPECT_THAT(message_of([&] { settle_step(*comm, world().rank().value() == 1 ? 8 : 7, -1.0); }),
              HasSubstr("ranks are in different steps: rank 0 is in synchronised step 7, rank 1 in 8"));
}

TEST(GpuStepHead, R12WhereRanksDoNotSeeEachOtherTheHeadItselfTells) {
  if (world().size() < 2) GTEST_SKIP() << "one rank differs from nobody";
  Unseen comm(world().communicator().split(all_ranks(world().size())));
  EXPECT_NO_THROW(settle_step(comm, 7, 2.0));
  EXPECT_NO_THROW(settle_step(comm, 7, -1.0));
  EXPECT_THAT(message_of([&] { settle_step(comm, 7, world().rank().value() == 0 ? 1.0 : -1.0); }),
              HasSubstr(text("set_weight() was called on 1 of ", world().size(), " ranks in step 7")));
  std::uint64_t const step = world().rank().value() == 1 ? 8 : 7;
  EXPECT_THAT(message_of([&] { settle_step(comm, step, -1.0); }),
              HasSubstr(text("ranks are in different steps: rank ", world().rank().value(),
                             " is in synchronised step ", step)));
  EXPECT_NO_THROW(comm.check_health()) << "the communicator itself saw nothing";
}

TEST(GpuStepHead, R12WhereRanksDoNotSeeEachOtherTheHeadTellsOfDifferentOperationsToo) {
  if (world().size() < 2) GTEST_SKIP() << "one rank differs from nobody";
  Unseen comm(world().communicator().split(all_ranks(world().size())));
  std::uint64_t const many = 0xfedcba9876543210U;
  comm.say_called(many);
  EXPECT_NO_THROW(settle_step(comm, 7, 2.0));
  EXPECT_NO_THROW(settle_step(comm, 8, -1.0));
  comm.say_called(world().rank().value() == 1 ? many + 1 : many);
  EXPECT_THAT(message_of([&] { settle_step(comm, 9, -1.0); }),
              HasSubstr(text("ranks have called different operations before step 9, as rank ",
                             world().rank().value(), " finds")));
}

TEST(GpuStepHead, R12R24WhereRanksDoNotSeeEachOtherAReplayCarriesItsHead) {
  if (world().size() < 2) GTEST_SKIP() << "one rank differs from nobody";
  for (double const weight : {-1.0, 2.0}) {
    Unseen comm(world().communicator().split(all_ranks(world().size())));
    auto const compute = make_compute_stream(world().device());
    auto const stream = make_comm_stream(world().device());
    auto const head = StepHead::make({world().device(), &comm, compute.get(), stream.get()});
    auto const graph = cuda::make_recorded_graph();
    comm.begin_recording(*stream);
    graph->begin(*compute);
    stream->wait(*compute);
    head->record(weight);
    compute->wait(*stream);
    graph->end(*compute);
    comm.end_recording(graph);
    auto const replay = [&](std::uint64_t step) {
      head->begin_replay(step, weight, *compute);
      comm.replay(*graph, *compute);
      stream->wait(*compute);
      stream->synchronize();
    };
    EXPECT_NO_THROW(replay(7));
    EXPECT_NO_THROW(replay(8));
    std::uint64_t const step = world().rank().value() == 1 ? 10 : 9;
    EXPECT_THAT(message_of([&] { replay(step); }),
                HasSubstr(text("ranks are in different steps: rank ", world().rank().value(),
                               " is in synchronised step ", step)));
    EXPECT_THAT(message_of([&] { head->begin_replay(step + 1, weight, *compute); }),
                HasSubstr("ranks are in different steps"))
        << "also where nothing waited";
  }
}

}  // namespace
}  // namespace ddp::testing
