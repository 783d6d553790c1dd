// P4: scatter.
#include "ddp/data_parallel/scatter.hpp"

#include <gmock/gmock.h>

#include <tuple>

#include "ddp/core/text.hpp"
#include "ddp/data_parallel/gather.hpp"
#include "support/devices/test_devices.hpp"
#include "support/errors.hpp"
#include "support/models/movement.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::size_t> rows(std::vector<Value> const& parts) {
  std::vector<std::size_t> all;
  for (Value const& part : parts) all.push_back(part.view().shape[0]);
  return all;
}

TEST(Scatter, P4ChunksAreAsEvenAsTheCeilingAllows) {
  struct Case {
    std::size_t rows;
    std::size_t devices;
    std::vector<std::size_t> expected;
  };
  std::vector<Case> const cases{{5, 4, {2, 2, 1}}, {8, 4, {2, 2, 2, 2}}, {9, 4, {3, 3, 3}}, {1, 4, {1}},
                                {3, 4, {1, 1, 1}}, {7, 3, {3, 3, 1}},    {6, 1, {6}},       {0, 3, {0}}};
  for (Case const& each : cases) {
    if (fewer_devices_than(each.devices)) continue;
    SCOPED_TRACE(text(each.rows, " rows over ", each.devices));
    auto const parts = scatter(counting<float>(Device{}, {each.rows, 2}), test_devices(each.devices));
    EXPECT_EQ(rows(parts), each.expected);
    float next = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].view().device, test_device(i));
      for (float const found : elements_of<float>(parts[i].view())) EXPECT_EQ(found, next++);
    }
  }
}

TEST(Scatter, P4SplitsAlongAnyDimension) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  Tensor const input = counting<std::int32_t>(test_device(0), {2, 3, 2});
  auto const parts = scatter(input, test_devices(2), 1);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].view().shape, (Shape{2, 2, 2}));
  EXPECT_EQ(parts[1].view().shape, (Shape{2, 1, 2}));
  EXPECT_THAT(elements_of<std::int32_t>(parts[0].view()), ElementsAre(0, 1, 2, 3, 6, 7, 8, 9));
  EXPECT_THAT(elements_of<std::int32_t>(parts[1].view()), ElementsAre(4, 5, 10, 11));
  auto const last = scatter(input, test_devices(2), 2);
  EXPECT_THAT(elements_of<std::int32_t>(last[1].view()), ElementsAre(1, 3, 5, 7, 9, 11));
}

TEST(Scatter, P4ElementsOfEveryDtypeAreSplitAndGatheredAgain) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    auto const dtype = static_cast<DType>(d);
    SCOPED_TRACE(to_string(dtype));
    std::vector<std::uint8_t> bytes(15 * size_of(dtype));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 3 == 0;
    Tensor const memory = tensor_on(test_device(0), {bytes.size()}, bytes);
    auto const parts =
        scatter(TensorView{memory.view().data, {5, 3}, dtype, test_device(0)}, test_devices(2));
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[1].view().shape, (Shape{2, 3}));
    Value const gathered = gather(parts, test_device(1));
    TensorView const& whole = gathered.view();
    EXPECT_EQ(whole.dtype, dtype);
    EXPECT_EQ(whole.shape, (Shape{5, 3}));
    EXPECT_EQ(elements_of<std::uint8_t>({whole.data, {bytes.size()}, DType::u8, whole.device}), bytes);
  }
}

TEST(Scatter, P4ContainersAreRebuiltAndOtherValuesAreShared) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  auto const shared = std::make_shared<int>(5);
  Value const input(std::make_tuple(
      std::vector<Tensor>{counting<float>(Device{}, {4}), counting<float>(Device{}, {3, 2})},
      Value::Map{{"x", counting<double>(Device{}, {4, 1})}, {"n", Value::other(shared)}}, Value()));
  auto const parts = scatter(input, test_devices(2));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_THAT(elements_of<float>(parts[1][0][0].view()), ElementsAre(2, 3));
  EXPECT_EQ(parts[1][0][1].view().shape, (Shape{1, 2}));
  EXPECT_THAT(elements_of<double>(parts[0][1]["x"].view()), ElementsAre(0, 1));
  EXPECT_EQ(parts[1][1]["n"].other<std::shared_ptr<int>>(), shared);
  EXPECT_TRUE(parts[1][2].is_none());
}

TEST(Scatter, P4WithoutTensorsEveryDeviceHasAPart) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  EXPECT_EQ(scatter(Value::other(std::string("all")), test_devices(2)).size(), 2U);
  EXPECT_EQ(scatter(Value(), test_devices(2)).size(), 1U);
  EXPECT_EQ(scatter(Value::List{}, test_devices(2)).size(), 1U);
}

TEST(Scatter, P4EachByteMovesOnceAtMost) {
  std::size_t const n = device_counts().back();
  Tensor const input = counting<float>(test_device(0), {6, 2});
  for (std::size_t const dim : {0, 1}) {
    std::vector<TensorPool> memories;
    for (Device const device : test_devices(n)) memories.emplace_back(device, make_compute_stream(device));
    Scattered const planned = plan_scatter(Value::List{input, input}, memories, dim, "input");
    std::size_t const here = dim == 0 ? planned.parts[0][0].view().bytes() : 0;
    EXPECT_EQ(bytes_of(planned.copies), 2 * (input.view().bytes() - here)) << "along dimension " << dim;
    if (dim == 0) {
      EXPECT_EQ(planned.parts[0][0].view().data, input.view().data) << "it is there already";
    }
  }
}

TEST(Scatter, P4DifferentChunkCountsAreAnErrorThatNamesBoth) {
  if (fewer_devices_than(3)) GTEST_SKIP() << "needs 3 devices";
  Value const input(Value::Map{{"a", counting<float>(Device{}, {5, 2})},
                               {"b", Value::List{counting<float>(Device{}, {2})}}});
  auto const error = error_of<Error>([&] { static_cast<void>(scatter(input, test_devices(3))); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(),
              HasSubstr("along dimension 0 and over 3 devices, input[\"a\"] (f32[5,2] on cpu:0) falls into 3 "
                        "chunks and input[\"b\"][0] (f32[2] on cpu:0) into 2; every tensor needs as many"));
}

TEST(Scatter, P4WhatCannotBeSplitIsRefused) {
  EXPECT_THAT(message_of([] { static_cast<void>(scatter(counting<float>(Device{}, {}), test_devices(1))); }),
              HasSubstr("input is f32[] on cpu:0, which has no dimension 0 to be split along"));
  EXPECT_THAT(
      message_of([] { static_cast<void>(scatter(counting<float>(Device{}, {4}), test_devices(1), 1)); }),
      HasSubstr("which has no dimension 1"));
  EXPECT_THAT(message_of([] { static_cast<void>(scatter(Value(), {})); }), HasSubstr("at least one device"));
}

TEST(Value, KindsAreToldApartAndWrongOnesAreErrors) {
  Value const list(std::vector<Tensor>{counting<float>(Device{}, {2})});
  EXPECT_EQ(describe(list), "a list of 1");
  EXPECT_EQ(describe(list[0]), "f32[2] on cpu:0");
  EXPECT_EQ(describe(Value(Value::Map{{"x", {}}, {"y", {}}})), "a map of x, y");
  EXPECT_EQ(describe(Value()), "nothing");
  EXPECT_THAT(message_of([&] { static_cast<void>(list.view()); }),
              HasSubstr("expected a tensor, found a list of 1"));
  EXPECT_THAT(message_of([&] { static_cast<void>(list[1]); }), HasSubstr("element 1 of a list of 1"));
  EXPECT_THAT(message_of([&] { static_cast<void>(list["x"]); }), HasSubstr("expected a map"));
  EXPECT_THAT(message_of([&] { static_cast<void>(Value::other(1).other<float>()); }),
              HasSubstr("expected an object of type"));
}

}  // namespace
}  // namespace ddp::testing
