// What ranks compare before the first value moves, with ranks that are threads.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

auto* const kCpus = VirtualCpus::before_all_tests(2);

using ::testing::HasSubstr;

TEST(ModelAgreement, R9DifferentShapesAreTheSameErrorOnEveryRank) {
  on_ranks(3, [](World const& world) {
    ToyModel model({4, world.rank() == 2 ? std::size_t{6} : std::size_t{5}});
    EXPECT_EQ(message_of([&] { DistributedDataParallel const ddp(world, model.parameters()); }),
              "rank 2: parameter 1 \"p1\" is f32[6] on cpu here, f32[5] on cpu on rank 0");
  });
}

TEST(ModelAgreement, R9DifferentCountsNamesAndBuffersAreNamed) {
  on_ranks(2, [](World const& world) {
    bool const odd = world.rank() == 1;
    ToyModel fewer({4, 5, 6});
    auto parameters = fewer.parameters();
    if (odd) parameters.pop_back();
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
                HasSubstr("rank 0 has parameter 2 \"p2\" of f32[6] on cpu, rank 1 has not"));
    parameters = fewer.parameters();
    if (odd) parameters[1].name = "renamed";
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
                HasSubstr("rank 1: parameter 1 \"renamed\" here is parameter 1 \"p1\" on rank 0"));
    std::vector<float> buffer(odd ? 3 : 4);
    EXPECT_THAT(message_of([&] {
                  DistributedDataParallel const ddp(world, fewer.parameters(),
                                                    {.buffers = {{"mean", view_of(std::span(buffer))}}});
                }),
                HasSubstr("rank 1: buffer 0 \"mean\" is f32[3] on cpu here, f32[4] on cpu on rank 0"));
    parameters = fewer.parameters();
    parameters[2].name = "p0";
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
                HasSubstr("stands twice"));
  });
}

TEST(ModelAgreement, R9WhatOneRankFindsWrongByItselfIsTheSameErrorOnEveryRank) {
  on_ranks(3, [](World const& world) {
    bool const odd = world.rank() == 2;
    ToyModel model({4, 5});
    auto parameters = model.parameters();
    if (odd) parameters[1].bind_gradient = nullptr;
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
                HasSubstr("rank 2: parameter 1 \"p1\" has no bind_gradient"));
    parameters = model.parameters();
    if (odd) parameters[0].name = "a\tb";
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
                HasSubstr("rank 2: the name \"a\tb\" holds a tab"));
  });
}

TEST(ModelAgreement, R9ATensorOnAnotherDeviceThanOnRank0IsAnError) {
  on_ranks(2, [](World const& world) {
    ToyModel model({4, 5});
    auto parameters = model.parameters();
    if (world.rank() == 1) parameters[0].value.device = Device{DeviceKind::cpu, DeviceIndex{1}};
    EXPECT_EQ(
        message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
        "rank 1: parameter 0 \"p0\" is f32[4] on cpu (device 2 of the model) here, f32[4] on cpu on rank 0");
  });
}

TEST(ModelAgreement, R12DifferentOptionsAreAnErrorBeforeAnythingCouldHang) {
  on_ranks(2, [](World const& world) {
    ToyModel model({400, 500});
    DistributedDataParallelOptions options;
    if (world.rank() == 1) options.bucket_bytes = options.first_bucket_bytes = 64_B;
    auto const message =
        message_of([&] { DistributedDataParallel const ddp(world, model.parameters(), options); });
    EXPECT_THAT(message, HasSubstr("rank 1 would reduce gradients with"));
    EXPECT_THAT(message, HasSubstr("others 64 B"));
    EXPECT_THAT(message, HasSubstr("others 25 MiB"));
  });
}

// A model of one square weight, which lies on rank 1 as its strides say.
std::string layout_error(Shape const& shape, std::vector<std::size_t> const& on_others,
                         std::vector<std::size_t> const& on_rank_1, bool as_buffer = false) {
  std::vector<std::string> messages(2);
  on_ranks(2, [&](World const& world) {
    ToyModel model({16, 1});
    auto parameters = model.parameters();
    TensorView value = slice(parameters[0].value, 0, shape.count());
    value.shape = shape;
    auto const& strides = world.rank() == 1 ? on_rank_1 : on_others;
    std::vector<NamedTensor> buffers;
    if (as_buffer) {
      buffers.push_back({"mean", value, strides});
    } else {
      parameters[0].value = value;
      parameters[0].strides = strides;
    }
    try {
      DistributedDataParallel const ddp(world, parameters, {.buffers = buffers});
    } catch (Error const& error) {
      messages[world.rank().index()] = error.what();
    }
  });
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

TEST(ModelAgreement, R9AnotherLayoutOnARankIsAnErrorThatNamesBoth) {
  EXPECT_EQ(layout_error({4, 4}, {}, {1, 4}),
            "rank 1: parameter 0 \"p0\" of f32[4,4] on cpu has strides [1,4] here, [4,1] on rank 0; elements "
            "travel in the order of memory, so it must lie alike on every rank");
  EXPECT_THAT(layout_error({2, 2, 4}, {8, 1, 2}, {}, true), HasSubstr("buffer 0 \"mean\" of f32[2,2,4]"));
}

TEST(ModelAgreement, R9EqualLayoutsInOtherWordsAreNone) {
  EXPECT_EQ(layout_error({4, 4}, {}, {4, 1}), "");
  EXPECT_EQ(layout_error({4, 4}, {1, 4}, {1, 4}), "");
  EXPECT_EQ(layout_error({2, 1, 8}, {8, 8, 1}, {8, 77, 1}), "") << "an axis of one element has no neighbours";
  EXPECT_EQ(layout_error({4, 0}, {}, {1, 4}), "") << "nothing lies anywhere";
}

TEST(ModelAgreement, R9LayoutsWithGapsOrOverlapsAreRefused) {
  EXPECT_THAT(
      layout_error({4, 2}, {}, {3, 1}),
      HasSubstr("rank 1: parameter \"p0\" is f32[4,2] on cpu:0 with strides [3,1]; expected no gap and no "
                "overlap"));
  EXPECT_THAT(layout_error({4, 2}, {1, 1}, {}), HasSubstr("rank 0: "));
  EXPECT_THAT(layout_error({4, 2}, {1}, {1}), HasSubstr("strides [1]; expected one stride an axis"));
}

}  // namespace
}  // namespace ddp::testing
