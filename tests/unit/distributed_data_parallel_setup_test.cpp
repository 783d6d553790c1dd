// What the construction of DistributedDataParallel checks and makes, with ranks that are threads.
#include <gmock/gmock.h>

#include <atomic>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "support/in_process_worlds.hpp"
#include "support/toy_model.hpp"
#include "support/virtual_cpus.hpp"

namespace ddp::testing {
namespace {

auto* const kCpus = VirtualCpus::before_all_tests(2);

using ::testing::HasSubstr;

TEST(DistributedDataParallel, R9RankZerosValuesArriveEverywhere) {
  on_ranks(3, [](World const& world) {
    ToyModel model({5, 400'000, 0, 3}, world.rank().value());
    std::vector<float> buffer(7, static_cast<float>(world.rank().value()) + 10.0F);
    DistributedDataParallel const ddp(world, model.parameters(),
                                      {Buffer{"running_mean", view_of(std::span(buffer))}});
    for (auto const& value : model.values) {
      for (std::size_t i = 0; i < value.size(); ++i) ASSERT_EQ(value[i], ToyModel::initial(0, i));
    }
    EXPECT_EQ(buffer[6], 10.0F);
  });
}

TEST(DistributedDataParallel, R9DifferentShapesAreTheSameErrorOnEveryRank) {
  on_ranks(3, [](World const& world) {
    ToyModel model({4, world.rank() == 2 ? std::size_t{6} : std::size_t{5}});
    EXPECT_EQ(message_of([&] { DistributedDataParallel const ddp(world, model.parameters()); }),
              "rank 2: parameter 1 \"p1\" is f32[6] on cpu here, f32[5] on cpu on rank 0");
  });
}

TEST(DistributedDataParallel, R9DifferentCountsNamesAndBuffersAreNamed) {
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
                                                    {Buffer{"mean", view_of(std::span(buffer))}});
                }),
                HasSubstr("rank 1: buffer 0 \"mean\" is f32[3] on cpu here, f32[4] on cpu on rank 0"));
    parameters = fewer.parameters();
    parameters[2].name = "p0";
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
                HasSubstr("stands twice"));
  });
}

TEST(DistributedDataParallel, R9WhatOneRankFindsWrongByItselfIsTheSameErrorOnEveryRank) {
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

TEST(DistributedDataParallel, R9ATensorOnAnotherDeviceThanOnRank0IsAnError) {
  on_ranks(2, [](World const& world) {
    ToyModel model({4, 5});
    auto parameters = model.parameters();
    if (world.rank() == 1) parameters[0].value.device = Device{DeviceKind::cpu, DeviceIndex{1}};
    EXPECT_EQ(
        message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
        "rank 1: parameter 0 \"p0\" is f32[4] on cpu (device 2 of the model) here, f32[4] on cpu on rank 0");
  });
}

TEST(DistributedDataParallel, AMovedObjectGoesOnWhereItWas) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5});
    DistributedDataParallel first(world, model.parameters());
    DistributedDataParallel second = std::move(first);
    model.fill_gradients(world.rank().value());
    mark_all(second);
    second.synchronize();
    EXPECT_EQ(model.gradients[0][2], ToyModel::average_gradient(0, 2, 2));
  });
}

TEST(DistributedDataParallel, R12DifferentOptionsAreAnErrorBeforeAnythingCouldHang) {
  on_ranks(2, [](World const& world) {
    ToyModel model({400, 500});
    ReducerOptions options;
    if (world.rank() == 1) options.bucket_bytes = options.first_bucket_bytes = 64_B;
    auto const message =
        message_of([&] { DistributedDataParallel const ddp(world, model.parameters(), options); });
    EXPECT_THAT(message, HasSubstr("rank 1 would reduce gradients with"));
    EXPECT_THAT(message, HasSubstr("others 64 B"));
    EXPECT_THAT(message, HasSubstr("others 25 MiB"));
  });
}

TEST(DistributedDataParallel, R3ArenaGradientsAreViewsOfBucketsAndNothingIsCopied) {
  on_ranks(2, [](World const& world) {
    ToyModel model({8, 12, 4});
    DistributedDataParallel ddp(world, model.parameters());
    auto const buckets = ddp.reducer().plan().buckets();
    ASSERT_EQ(buckets.size(), 1U);
    // Reverse registration order, one behind another in one run of memory.
    EXPECT_EQ(model.gradients[1], model.gradients[2] + 4);
    EXPECT_EQ(model.gradients[0], model.gradients[1] + 12);
    EXPECT_EQ(model.binds, (std::vector<int>{1, 1, 1}));
    EXPECT_EQ(ddp.reducer().gradient(0).data, model.gradients[0]);
    EXPECT_EQ(model.gradients[1][11], 0.0F) << "bound zeroed";
  });
}

// Three gradients of one length in a flat buffer, as llm.c has it; `offsets` may differ on rank 1. Checks the
// averages and returns how many messages a step takes.
std::size_t messages_in_place(std::vector<std::size_t> const& offsets,
                              std::vector<std::size_t> const& on_rank_1) {
  std::atomic<std::size_t> messages{0};
  on_ranks(2, [&](World const& world) {
    ToyModel model({6, 6, 6});
    std::vector<float> flat(64);
    auto parameters = model.parameters();
    for (std::size_t p = 0; p < 3; ++p) {
      std::size_t const offset = world.rank() == 1 ? on_rank_1[p] : offsets[p];
      parameters[p].gradient = view_of(std::span(flat).subspan(offset, 6));
      auto const gradient = parameters[p].gradient.as<float>();
      for (std::size_t i = 0; i < 6; ++i) gradient[i] = ToyModel::gradient(p, i, world.rank().value());
    }
    ReducerOptions options;
    options.storage = GradientStorage::in_place;
    DistributedDataParallel ddp(world, parameters, options);
    mark_all(ddp);
    ddp.synchronize();
    for (std::size_t p = 0; p < 3; ++p) {
      auto const gradient = parameters[p].gradient.as<float>();
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(gradient[i], ToyModel::average_gradient(p, i, 2)) << p << " " << i;
      }
    }
    messages = ddp.reducer().messages();
  });
  return messages;
}

TEST(DistributedDataParallel, R3InPlaceNeighboursTravelAsOneMessage) {
  EXPECT_EQ(messages_in_place({0, 6, 12}, {0, 6, 12}), 1U);
  EXPECT_EQ(messages_in_place({0, 6, 20}, {0, 6, 20}), 2U);
}

TEST(DistributedDataParallel, R3InPlaceGradientsInAnotherOrderOnARankTravelAlone) {
  EXPECT_EQ(messages_in_place({0, 6, 12}, {12, 6, 0}), 3U);
  EXPECT_EQ(messages_in_place({0, 6, 12}, {40, 20, 0}), 3U);
}

TEST(DistributedDataParallel, R16SeveralTypesAndDevicesInOneModel) {
  on_ranks(2, [](World const& world) {
    int const me = world.rank().value();
    std::vector<double> wide(4, me);
    std::vector<float> narrow(4, static_cast<float>(me));
    std::vector<bfloat16> half(4, bfloat16(static_cast<float>(me)));
    double* wide_gradient = nullptr;
    float* narrow_gradient = nullptr;
    bfloat16* half_gradient = nullptr;
    TensorView elsewhere = view_of(std::span(narrow));
    elsewhere.device = Device{DeviceKind::cpu, DeviceIndex{1}};
    std::vector<Parameter> parameters{
        {"wide",
         view_of(std::span(wide)),
         [&](TensorView const& v) { wide_gradient = v.as<double>().data(); },
         {}},
        {"narrow", elsewhere, [&](TensorView const& v) { narrow_gradient = v.as<float>().data(); }, {}},
        {"half",
         view_of(std::span(half)),
         [&](TensorView const& v) { half_gradient = v.as<bfloat16>().data(); },
         {}}};
    DistributedDataParallel ddp(world, parameters);
    EXPECT_EQ(wide[3], 0.0);
    EXPECT_EQ(narrow[3], 0.0F) << "the other device's values were broadcast too";
    for (int step = 0; step < 3; ++step) {
      wide_gradient[3] = me + 1.0;
      narrow_gradient[3] = static_cast<float>(me) + 2.0F;
      half_gradient[3] = bfloat16(static_cast<float>(me) + 3.0F);
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(wide_gradient[3], 1.5);
      EXPECT_EQ(narrow_gradient[3], 2.5F);
      EXPECT_EQ(static_cast<float>(half_gradient[3]), 3.5F);
    }
    EXPECT_EQ(ddp.reducer().plan().arenas().size(), 3U);
  });
}

TEST(DistributedDataParallel, R16SeveralObjectsInOneProgramDoNotMix) {
  on_ranks(3, [](World const& world) {
    ToyModel generator({50, 60});
    ToyModel critic({70});
    DistributedDataParallel first(world, generator.parameters());
    DistributedDataParallel second(world, critic.parameters());
    for (int step = 0; step < 20; ++step) {
      generator.fill_gradients(world.rank().value());
      critic.fill_gradients(world.rank().value());
      // Both in flight, and the program's own collective between them.
      first.gradient_ready(1);
      second.gradient_ready(0);
      std::vector<float> own(3, 1.0F);
      world.communicator().all_reduce(view_of(std::span(own)), ReduceOp::sum(), world.stream());
      first.gradient_ready(0);
      second.synchronize();
      first.synchronize();
      EXPECT_EQ(own[0], 3.0F);
      EXPECT_EQ(generator.gradients[0][7], ToyModel::average_gradient(0, 7, 3));
      EXPECT_EQ(critic.gradients[0][7], ToyModel::average_gradient(0, 7, 3));
      generator.clear_gradients();
      critic.clear_gradients();
    }
  });
}

TEST(DistributedDataParallel, WrongParametersAreRefused) {
  on_ranks(1, [](World const& world) {
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, {}); }), HasSubstr("empty"));
    ToyModel model({5, 6});
    auto parameters = model.parameters();
    parameters[1].bind_gradient = nullptr;
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters); }),
                HasSubstr("parameter 1 \"p1\" has no bind_gradient"));
    ReducerOptions in_place;
    in_place.storage = GradientStorage::in_place;
    parameters = model.parameters();
    parameters[1].gradient = slice(parameters[1].gradient, 0, 5);
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters, in_place); }),
                HasSubstr("its gradient f32[5]"));
    parameters = model.parameters();
    parameters[1].gradient.data = parameters[0].gradient.data;
    EXPECT_THAT(message_of([&] { DistributedDataParallel const ddp(world, parameters, in_place); }),
                HasSubstr("overlap in memory"));
    std::vector<std::int32_t> whole(3);
    EXPECT_THAT(
        message_of([&] {
          DistributedDataParallel const ddp(world, {{"steps", view_of(std::span(whole)), nullptr, {}}});
        }),
        HasSubstr("only floating point"));
    DistributedDataParallel ddp(world, model.parameters());
    EXPECT_THAT(message_of([&] { ddp.gradient_ready(2); }), HasSubstr("no parameter 2"));
    ddp.gradient_ready(1);  // harmed nothing
  });
}

}  // namespace
}  // namespace ddp::testing
