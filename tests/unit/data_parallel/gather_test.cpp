// P7: gather.
#include "ddp/data_parallel/gather.hpp"

#include <gmock/gmock.h>

#include "ddp/core/text.hpp"
#include "ddp/data_parallel/scatter.hpp"
#include "support/devices/test_devices.hpp"
#include "support/errors.hpp"
#include "support/models/movement.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Value> pair(Value const& a, Value const& b) { return {a, b}; }

TEST(Gather, P7PutsBackWhatScatterTookApartAlongAnyDimensionOnAnyDevice) {
  for (std::size_t const n : device_counts()) {
    for (std::size_t const dim : {0, 1, 2}) {
      for (Device const device : {Device{}, test_device(n - 1)}) {
        SCOPED_TRACE(text(n, " devices, dimension ", dim, ", to ", device));
        Tensor const input = counting<std::int64_t>(test_device(0), {3, 5, 4});
        Value const found = gather(scatter(input, test_devices(n), dim), device, dim);
        EXPECT_EQ(found.view().device, device);
        EXPECT_EQ(found.view().shape, input.view().shape);
        EXPECT_EQ(elements_of<std::int64_t>(found.view()), elements_of<std::int64_t>(input));
      }
    }
  }
}

TEST(Gather, P7EachByteMovesOnceAndAllAreWritten) {
  std::size_t const n = device_counts().back();
  for (std::size_t const dim : {0, 1}) {
    std::vector<Value> outputs;
    for (Device const device : test_devices(n)) outputs.emplace_back(counting<float>(device, {4, 3}));
    TensorPool memory(test_device(0), make_compute_stream(test_device(0)));
    Gathered const planned = plan_gather(
        outputs, [&](Value const&) -> TensorPool& { return memory; }, dim, "the output");
    TensorView const& whole = planned.value.view();
    if (n == 1) {
      EXPECT_EQ(bytes_of(planned.copies), 0U) << "a single output is the result";
      continue;
    }
    EXPECT_EQ(bytes_of(planned.copies), whole.bytes()) << "along dimension " << dim;
    std::vector<int> written(whole.bytes());
    for (BlockCopies const& of_one : planned.copies) {
      for (BlockCopy const& copy : of_one) {
        auto const begin =
            static_cast<std::size_t>(static_cast<std::byte*>(copy.to) - static_cast<std::byte*>(whole.data));
        for (std::size_t row = 0; row < copy.rows; ++row) {
          for (std::size_t b = 0; b < copy.width; ++b) ++written.at(begin + row * copy.to_pitch + b);
        }
      }
    }
    EXPECT_THAT(written, Each(1)) << "along dimension " << dim;
  }
}

TEST(Gather, P7ScalarsBecomeAVectorWithAWarning) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  ::testing::internal::CaptureStderr();
  Value const found =
      gather(pair(tensor_on<float>(test_device(0), {}, {3}), tensor_on<float>(test_device(1), {}, {4})),
             Device{}, 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("they become a vector with one element for each of the 2 replicas"));
  EXPECT_EQ(found.view().shape, Shape{2});
  EXPECT_THAT(elements_of<float>(found.view()), ElementsAre(3, 4));
}

TEST(Gather, P7ContainersAreGatheredMemberByMember) {
  auto const output = [](int replica) {
    return Value(Value::Map{
        {"y", Value::List{counting<float>(Device{}, {2})}}, {"name", Value::other(replica)}, {"none", {}}});
  };
  Value const found = gather(pair(output(0), output(1)), Device{});
  EXPECT_THAT(elements_of<float>(found["y"][0].view()), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(found["name"][1].other<int>(), 1);
  EXPECT_TRUE(found["none"].is_none());
}

TEST(Gather, P7WhatDiffersIsAnErrorThatNamesTheReplica) {
  auto const floats = [](Shape const& shape) { return Value(counting<float>(Device{}, shape)); };
  struct Case {
    Value first;
    Value second;
    std::string expected;
  };
  Value::Map const x{{"x", floats({2})}};
  Value::Map const y{{"y", floats({2})}};
  std::vector<Case> const cases{
      {floats({2, 3}), floats({2, 4}),
       "the output of replica 1 is f32[2,4] on cpu:0, that of replica 0 is f32[2,3] on cpu:0; dtypes must be "
       "equal, and all extents but the one along dimension 0"},
      {floats({2, 3}), floats({2}), "replica 1 is f32[2] on cpu:0, that of replica 0 is f32[2,3]"},
      {floats({2}), Value(counting<double>(Device{}, {2})), "replica 1 is f64[2]"},
      {floats({2}), floats({}), "replica 1 is f32[]"},
      {floats({2}), Value(),
       "replica 1 is nothing, that of replica 0 is f32[2] on cpu:0; every replica must"},
      {x, y,
       "replica 1 is a map of y, that of replica 0 is a map of x; every replica must return the same names"},
      {Value::List{floats({2})}, Value::List{}, "replica 1 is a list of 0, that of replica 0 is a list of 1"},
      {Value::List{Value(Value::List{floats({1, 2})})}, Value::List{Value(Value::List{floats({1, 3})})},
       "the output[0][0] of replica 1 is f32[1,3]"}};
  for (Case const& each : cases) {
    EXPECT_THAT(message_of([&] { static_cast<void>(gather(pair(each.first, each.second), Device{})); }),
                HasSubstr(each.expected));
  }
  EXPECT_THAT(message_of([] { static_cast<void>(gather({}, Device{})); }),
              HasSubstr("at least one replica's"));
}

}  // namespace
}  // namespace ddp::testing
