#include "reducer/checks/replica_check.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ReplicaCheck, F12ComparesEverySoManySteps) {
  ReducerParts parts;
  ReplicaCheck check(parts.state, 2);
  check.verdict();
  EXPECT_THAT(parts.communicator.calls, IsEmpty());
  parts.state.step.number = 1;
  check.verdict();
  EXPECT_EQ(parts.communicator.calls.size(), 1U);
}

TEST(ReplicaCheck, F12WeightsThatDifferAreNamedWithTheirRanks) {
  ReducerParts parts(3);
  ReplicaCheck check(parts.state, 1);
  parts.communicator.others = [](std::string const& /*call*/, TensorView const& out) {
    ++out.as<std::int64_t>()[3 + 1];  // rank 1's second parameter
  };
  EXPECT_THAT(message_of([&] { check.verdict(); }),
              AllOf(HasSubstr("parameter 1 \"p1\" on rank 1"), HasSubstr("do not have the same weights")));
}

TEST(ReplicaCheck, F12OneFlippedBitChangesAHash) {
  for (int bit = 0; bit < 32; ++bit) {
    EXPECT_NE(hash_of(0x3f800000U, 5), hash_of(0x3f800000U ^ (1U << bit), 5)) << "bit " << bit;
  }
}

}  // namespace
}  // namespace ddp::testing
