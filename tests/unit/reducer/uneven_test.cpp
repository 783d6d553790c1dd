#include "reducer/parts/uneven.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// Whether this rank and the other one have data.
bool any_has_data(bool here, bool there) {
  ReducerParts parts;
  Uneven uneven(parts.state, "divide_by_live", false);
  parts.state.step.kind = here ? StepKind::own : StepKind::joined;
  parts.communicator.others = [&](std::string const& /*call*/, TensorView const& out) {
    out.as<std::uint8_t>()[1] = there ? 1 : 0;
  };
  parts.begin(uneven);
  bool const any = uneven.any_has_data();
  parts.end(uneven);
  return any;
}

TEST(Uneven, R11RanksTellEachOtherWhoHasData) {
  EXPECT_TRUE(any_has_data(true, false));
  EXPECT_TRUE(any_has_data(false, true));
  EXPECT_FALSE(any_has_data(false, false));
}

TEST(Uneven, R11WhereThatIsAnErrorItNamesTheRanks) {
  ReducerParts parts;
  Uneven uneven(parts.state, "error", true);
  parts.communicator.others = [](std::string const& /*call*/, TensorView const& out) {
    out.as<std::uint8_t>()[1] = 0;
  };
  parts.begin(uneven);
  EXPECT_THAT(message_of([&] { parts.end(uneven); }),
              HasSubstr("rank 1 called join() before synchronised step 0"));
}

TEST(Uneven, R24StepsAreNotRecordedWithIt) {
  ReducerParts parts;
  Uneven const uneven(parts.state, "divide_by_all", false);
  EXPECT_EQ(uneven.describe(), "uneven divide_by_all");
  EXPECT_THAT(uneven.why_not_recorded(), HasSubstr("Options::uneven is set"));
  EXPECT_FALSE(uneven.may_refuse());
}

}  // namespace
}  // namespace ddp::testing
