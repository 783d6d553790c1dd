#include "reducer/buckets/bucket_updates.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BucketUpdates, R13EachBucketIsUpdatedOnAStreamBehindItsReduction) {
  ReducerParts parts;
  BucketUpdates updates(parts.state);
  std::vector<std::size_t> seen;
  std::atomic<int> reduced{0};
  auto* const written = &reduced;
  parts.comm_stream.enqueue([written] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    *written = 1;
  });
  std::array<int, 2> found{};
  updates.use("on_bucket_ready()", [&](ReducedBucket const& bucket) {
    EXPECT_NE(&bucket.stream, static_cast<Stream*>(&parts.comm_stream));
    seen.push_back(bucket.index);
    host_stream(bucket.stream).enqueue([written, to = &found[bucket.index]] { *to = *written; });
  });
  updates.run_all();
  updates.wait();
  EXPECT_THAT(seen, ElementsAre(0, 1));
  EXPECT_THAT(found, ElementsAre(1, 1));
  updates.use("on_bucket_ready()", {});
  EXPECT_THAT(updates.streams(), IsEmpty());
  updates.run(0);
  EXPECT_EQ(seen.size(), 2U);
}

TEST(BucketUpdates, R26OfAStepThatBrokeItIsKnownWhetherABucketWasUpdated) {
  ReducerParts parts;
  BucketUpdates updates(parts.state);
  updates.use("on_bucket_ready()", [](ReducedBucket const&) {});
  EXPECT_EQ(updates.begun(), 0U);
  updates.run(0);
  updates.wait();
  EXPECT_EQ(updates.begun(), 1U);
  ++parts.state.step.number;  // the step is done
  parts.comm_stream.enqueue([] { throw Error(ErrorCode::io, "a lost rank"); });
  updates.run(0);
  EXPECT_THROW(updates.wait(), Error);
  EXPECT_EQ(updates.begun(), 1U) << "an update behind what failed does not run";
  updates.mark_begun();
  EXPECT_EQ(updates.begun(), 2U);
}

}  // namespace
}  // namespace ddp::testing
