#include "reducer/memory/gradient_memory.hpp"

#include <array>

#include "ddp/device/memory.hpp"
#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(GradientMemory, R3ArenasAreBoundAndSentFromWhereTheyLie) {
  ReducerParts parts;
  GradientMemory& memory = parts.state.memory;
  EXPECT_THAT(parts.model.binds, Each(1));
  EXPECT_EQ(parts.model.gradients[2], memory.gradient(2).data);
  ASSERT_THAT(memory.messages(0), SizeIs(1));
  EXPECT_EQ(memory.messages(0)[0].data, memory.gradient(2).data) << "the first of the bucket";
}

TEST(GradientMemory, R7UnusedGradientsAreSentAsZeros) {
  ReducerParts parts;
  parts.model.fill_gradients(1);
  parts.state.memory.fill(0, {.used = std::array<std::uint8_t, 3>{1, 0, 1}});
  parts.comm_stream.synchronize();
  EXPECT_THAT(parts.state.memory.gradient(1).as<float>(), Each(0.0F));
  EXPECT_EQ(parts.state.memory.gradient(2).as<float>()[1], ToyModel::gradient(2, 1, 1));
}

TEST(GradientMemory, R22SourcesAreCopiedOrSentFromWhereTheyLie) {
  ReducerParts parts;
  GradientMemory& memory = parts.state.memory;
  std::vector<float> source(4, 5.0F);
  auto const owner = std::make_shared<int>();
  memory.set_source(0, Tensor(view_of(std::span(source)), owner));
  memory.fill(1, {.used = kAllUsed, .may_send_sources = true});
  auto const direct = memory.sent_from_source(1);
  ASSERT_TRUE(direct);
  EXPECT_EQ(direct->from.data, source.data());
  EXPECT_EQ(direct->to.data, memory.gradient(0).data);
  memory.fill(1, {.used = kAllUsed});
  parts.comm_stream.synchronize();
  EXPECT_FALSE(memory.sent_from_source(1));
  EXPECT_THAT(memory.gradient(0).as<float>(), Each(5.0F));
  memory.release_sources();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(GradientMemory, R14BucketsOfAnotherTypeAreConvertedThereAndBack) {
  ReducerParts parts(2, {.reduce_dtype = DType::f64});
  GradientMemory& memory = parts.state.memory;
  ASSERT_TRUE(memory.converts(1));
  parts.model.fill_gradients(2);
  memory.fill(1, {.used = kAllUsed});
  parts.comm_stream.synchronize();
  auto const sent = memory.messages(1)[0].as<double>();
  EXPECT_EQ(sent[3], ToyModel::gradient(0, 3, 2));
  sent[3] = 9;
  memory.give_back(1, parts.state.buckets[1].slices, false);
  parts.comm_stream.synchronize();
  EXPECT_EQ(memory.gradient(0).as<float>()[3], 9.0F);
}

TEST(GradientMemory, R3CopyGivesResultsBackToTheProgramsMemory) {
  ReducerParts parts(2, {.storage = GradientStorage::copy});
  GradientMemory& memory = parts.state.memory;
  parts.model.own[0] = {1, 2, 3, 4};
  memory.fill(1, {.used = kAllUsed});
  parts.comm_stream.synchronize();
  memory.messages(1)[0].as<float>()[2] = 30;
  memory.give_back(1, parts.state.buckets[1].slices, false);
  parts.comm_stream.synchronize();
  EXPECT_THAT(parts.model.own[0], ElementsAre(1, 2, 30, 4));
}

TEST(GradientMemory, R2ANewPlanTakesTheGradientsAlong) {
  ReducerParts parts;
  parts.model.fill_gradients(1);
  parts.state.buckets.use(parts.state.buckets.plan_for(std::vector<std::size_t>{0, 1, 2}));
  parts.state.memory.plan_changed(parts.state.buckets.plan(), true);
  EXPECT_THAT(parts.model.binds, Each(2));
  for (std::size_t p = 0; p < 3; ++p)
    EXPECT_EQ(parts.model.gradients[p][1], ToyModel::gradient(p, 1, 1)) << p;
}

TEST(GradientMemory, R2ARebuildThatFindsNoMemoryLeavesThePlanOfBefore) {
  int times = 0;
  DistributedDataParallelOptions options{.reduce_dtype = DType::f64};
  options.allocate = [&times](Bytes bytes, Device device) {
    if (++times > 2) throw Error(ErrorCode::out_of_memory, "no more");
    return zeros(Shape{bytes.value}, DType::u8, device);
  };
  ReducerParts parts;
  ToyModel model({40, 60});
  std::vector<Parameter> const parameters = model.parameters();
  GradientMemory memory("large", GradientMemory::Options(options), parts.state.lanes, parameters);
  std::vector<GradientSpec> const specs{{40, DType::f32, {}}, {60, DType::f32, {}}};
  std::vector<std::size_t> const order{1, 0};
  BucketPlan const small(specs, order, {Bytes{64}, Bytes{64}});
  memory.plan_changed(small, true);
  auto const* const before = memory.messages(0).data();
  BucketPlan const larger(specs, order, {Bytes{1000}, Bytes{1000}});  // needs a larger buffer
  EXPECT_THAT(message_of([&] { memory.plan_changed(larger, true); }), HasSubstr("no more"));
  EXPECT_EQ(memory.messages(0).data(), before);
  EXPECT_EQ(memory.gradient(1).data, model.gradients[1]);
}

TEST(GradientMemory, R22ASourceOfAnotherFormIsRefused) {
  ReducerParts parts;
  std::vector<float> few(3);
  EXPECT_THAT(message_of([&] { parts.state.memory.check_source(0, view_of(std::span(few))); }),
              HasSubstr("expected the gradient of parameter 0 \"p0\", f32[4] on cpu:0, found f32[3]"));
}

}  // namespace
}  // namespace ddp::testing
