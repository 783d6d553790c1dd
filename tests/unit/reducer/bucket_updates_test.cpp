#include "reducer/bucket_updates.hpp"

#include "support/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BucketUpdates, R13EachBucketIsUpdatedOnAStreamBehindItsReduction) {
  ReducerParts parts;
  BucketUpdates updates(parts.state);
  std::vector<std::size_t> seen;
  updates.use([&](ReducedBucket const& bucket) {
    EXPECT_NE(&bucket.stream, static_cast<Stream*>(&parts.comm_stream));
    seen.push_back(bucket.index);
  });
  updates.run_all();
  updates.wait();
  EXPECT_THAT(seen, ElementsAre(0, 1));
  updates.use({});
  EXPECT_THAT(updates.streams(), IsEmpty());
  updates.run(0);
  EXPECT_EQ(seen.size(), 2U);
}

}  // namespace
}  // namespace ddp::testing
