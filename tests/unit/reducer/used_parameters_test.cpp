#include "reducer/parts/used_parameters.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Used {
  explicit Used(bool refuses, int ranks = 2)
      : parts(ranks),
        weights(parts.state, RankWeights::Without::average, true),
        used(parts.state, weights, refuses) {}
  ReducerParts parts;
  RankWeights weights;
  UsedParameters used;
};

TEST(UsedParameters, R7OneByteAParameterTellsWhetherAnyRankUsedIt) {
  Used all(false);
  all.parts.communicator.others = [](std::string const& /*call*/, TensorView const& out) {
    out.as<std::uint8_t>()[1] = 1;  // another rank's
  };
  all.parts.state.marks.mark(2, 0);
  all.parts.begin(all.used);
  all.parts.end(all.used);
  EXPECT_THAT(all.parts.communicator.calls, ElementsAre("all_reduce u8[3] max"));
  EXPECT_FALSE(all.used.by_any(0));
  EXPECT_TRUE(all.used.by_any(1));
  EXPECT_TRUE(all.used.by_any(2));
  EXPECT_THAT(all.used.words().as<std::uint8_t>(), ElementsAre(0, 1, 1));
}

TEST(UsedParameters, R7WhereAllMustBeUsedTheErrorNamesParametersAndRanks) {
  Used all(true);
  all.parts.communicator.others = [](std::string const& /*call*/, TensorView const& out) {
    out.as<std::uint8_t>()[3] = 1;  // rank 1's first one
  };
  all.parts.state.marks.mark(1, 0);
  all.parts.begin(all.used);
  EXPECT_THAT(message_of([&] { all.parts.end(all.used); }),
              AllOf(HasSubstr("\"p0\" on rank 0; "), HasSubstr("\"p2\" on ranks 0, 1. ")));
  EXPECT_THAT(all.parts.communicator.calls, ElementsAre("all_gather u8[3]"));
}

TEST(UsedParameters, R7R11ARankWithoutSayIsNotComplainedOf) {
  Used weighted(true);
  weighted.weights.set(0);
  weighted.parts.begin(weighted.used);
  EXPECT_NO_THROW(weighted.parts.end(weighted.used));
  EXPECT_TRUE(weighted.used.by_any(0)) << "it tells that all is well";
  Used joined(true);
  joined.parts.state.step.kind = StepKind::joined;
  joined.parts.begin(joined.used);
  EXPECT_NO_THROW(joined.parts.end(joined.used));
}

// What hosts tell each other is asked for then, and what the lane's device says is not waited for. A step
// that is enqueued again from a recording is only known to the device.
TEST(UsedParameters, R27CpusAnswerOnceTheyHaveALane) {
  FakeCommunicator hosts(2);
  HostStream host_stream;
  Used all(false);
  hosts.others = [](std::string const& /*call*/, TensorView const& out) { out.as<std::uint8_t>()[1] = 1; };
  all.used.tell_over({Device{}, &hosts, all.parts.compute.get(), &host_stream});
  all.parts.state.marks.mark(2, 0);
  all.parts.begin(all.used);
  all.parts.end(all.used);
  EXPECT_THAT(hosts.calls, ElementsAre("all_reduce u8[3] max"));
  EXPECT_THAT(all.parts.communicator.calls, ElementsAre("all_reduce u8[3] max")) << "words() still has them";
  EXPECT_TRUE(all.used.by_any(1));
  EXPECT_TRUE(all.used.by_any(2));
  EXPECT_FALSE(all.used.by_any(0));
  all.used.was_sent();
  EXPECT_FALSE(all.used.by_any(1));
  host_stream.synchronize();
}

TEST(UsedParameters, AnAdaptersFlagsGoWithThem) {
  Used all(false);
  all.used.carry(2, [](std::span<std::uint8_t> flags) { flags[1] = 1; });
  all.parts.begin(all.used);
  all.parts.end(all.used);
  EXPECT_THAT(all.parts.communicator.calls, ElementsAre("all_reduce u8[5] max"));
  EXPECT_THAT(all.used.flags(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace ddp::testing
