// What the construction of DistributedDataParallel checks and makes, and its first step, with ranks that are
// threads.
#include <gmock/gmock.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "ddp/checkpoint/checkpoint.hpp"
#include "ddp/core/text.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "parallel/ddp/reducer_access.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

auto* const kCpus = VirtualCpus::before_all_tests(2);

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DistributedDataParallel, R9RankZerosValuesArriveEverywhere) {
  on_ranks(3, [](World const& world) {
    ToyModel model({5, 400'000, 0, 3}, world.rank().value());
    std::vector<float> buffer(7, static_cast<float>(world.rank().value()) + 10.0F);
    DistributedDataParallel const ddp(world, model.parameters(),
                                      {.buffers = {{"running_mean", view_of(std::span(buffer))}}});
    for (auto const& value : model.values) {
      for (std::size_t i = 0; i < value.size(); ++i) ASSERT_EQ(value[i], ToyModel::initial(0, i));
    }
    EXPECT_EQ(buffer[6], 10.0F);
  });
}

// Gradients are written where the second one bound them.
TEST(DistributedDataParallel, R9OfTwoWithTheSameParametersTheFirstOneSaysThatItCannotAverageThem) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place}) {
    on_ranks(2, [&](World const& world) {
      ToyModel model({5, 6});
      DistributedDataParallel first(world, model.parameters(), {.storage = storage});
      mark_all(first);
      first.synchronize();
      auto part = model.parameters();
      part.erase(part.begin());  // as of a layer that two models share
      DistributedDataParallel second(world, part);
      *model.gradients[1] = static_cast<float>(world.rank().value());
      second.gradient_ready(0);
      second.synchronize();
      EXPECT_EQ(*model.gradients[1], 0.5F);
      EXPECT_THAT(
          message_of([&] {
            mark_all(first);
            first.synchronize();
          }),
          AllOf(HasSubstr("has lost parameter \"p1\" to"), HasSubstr("one DistributedDataParallel only")));
    });
  }
}

TEST(DistributedDataParallel, R9AnotherOneMayTakeOverTheParametersOfOneThatIsNotUsedAnyMore) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5});
    std::vector<float> elsewhere(5);
    DistributedDataParallel ddp(world, model.parameters());
    for (int round = 0; round < 3; ++round) {
      ddp = DistributedDataParallel(world, model.parameters());
      *model.gradients[0] = static_cast<float>(world.rank().value());
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(*model.gradients[0], 0.5F);
    }
    // The values have left their memory, which another model has now.
    ddp.rebind_value(0, view_of(std::span(elsewhere)));
    DistributedDataParallel const other(world, model.parameters());
    mark_all(ddp);
    ddp.synchronize();
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

TEST(DistributedDataParallel, R3ArenaGradientsAreViewsOfBucketsAndNothingIsCopied) {
  on_ranks(2, [](World const& world) {
    ToyModel model({8, 12, 4});
    DistributedDataParallel ddp(world, model.parameters());
    auto const buckets = ddp.plan().buckets();
    ASSERT_EQ(buckets.size(), 1U);
    // Reverse registration order, one behind another in one run of memory.
    EXPECT_EQ(model.gradients[1], model.gradients[2] + 4);
    EXPECT_EQ(model.gradients[0], model.gradients[1] + 12);
    EXPECT_EQ(model.binds, (std::vector<int>{1, 1, 1}));
    EXPECT_EQ(reducer_of(ddp).gradient(0).data, model.gradients[0]);
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
    DistributedDataParallelOptions options;
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
    messages = ddp.messages();
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
    EXPECT_EQ(ddp.plan().arenas().size(), 3U);
  });
}

// Nothing lies on the World's own device, or a part of the model does.
TEST(DistributedDataParallel, R19ASubGroupTrainsByItselfWhereverTheModelLies) {
  for (bool const in_part : {false, true}) {
    on_ranks(4, [&](World whole) {
      int const me = whole.rank().value();
      Rank const first{me / 2 * 2};
      auto const pair = whole.subgroup(std::vector<Rank>{first, Rank{first.value() + 1}});
      ASSERT_TRUE(pair);
      std::vector<float> value(3, static_cast<float>(me));
      std::vector<double> beside(3, me);
      float* gradient = nullptr;
      double* gradient_beside = nullptr;
      TensorView elsewhere = view_of(std::span(value));
      elsewhere.device = Device{DeviceKind::cpu, DeviceIndex{1}};
      std::vector<Parameter> parameters{
          {"elsewhere", elsewhere, [&](TensorView const& v) { gradient = v.as<float>().data(); }, {}}};
      if (in_part) {
        parameters.push_back({"here",
                              view_of(std::span(beside)),
                              [&](TensorView const& v) { gradient_beside = v.as<double>().data(); },
                              {}});
      }
      DistributedDataParallel ddp(*pair, parameters);
      EXPECT_EQ(value[2], static_cast<float>(first.value())) << "the values of the group's first rank";
      for (int step = 0; step < 3; ++step) {
        gradient[2] = static_cast<float>(me);
        if (in_part) gradient_beside[2] = me;
        mark_all(ddp);
        ddp.synchronize();
        EXPECT_EQ(gradient[2], static_cast<float>(first.value()) + 0.5F);
        if (in_part) {
          EXPECT_EQ(gradient_beside[2], first.value() + 0.5);
        }
      }
    });
  }
}

// What ranks of a sub-group are called: as in the whole.
TEST(DistributedDataParallel, R19ErrorsOfASubGroupOnAnotherDeviceNumberRanksAsTheWorldDoes) {
  on_ranks(4, [](World whole) {
    int const me = whole.rank().value();
    auto const pair = whole.subgroup(std::vector<Rank>{Rank{me / 2 * 2}, Rank{me / 2 * 2 + 1}});
    ToyModel model({5});
    auto parameters = model.parameters();
    parameters[0].value.device = Device{DeviceKind::cpu, DeviceIndex{1}};
    DistributedDataParallel ddp(*pair, parameters);
    if (me % 2 == 1) ddp.set_weight(1);
    EXPECT_THAT(message_of([&] {
                  mark_all(ddp);
                  ddp.synchronize();
                }),
                HasSubstr(text("called on rank ", me / 2 * 2 + 1, " and not on rank ", me / 2 * 2)));
  });
}

TEST(NamedValues, AreRowMajor) {
  ToyModel model({6});
  auto parameters = model.parameters();
  parameters[0].value.shape = Shape{2, 3};
  parameters[0].strides = {3, 1};
  EXPECT_EQ(named_values(parameters).size(), 1U);
  parameters[0].strides = {1, 2};
  EXPECT_THAT(message_of([&] { static_cast<void>(named_values(parameters)); }),
              HasSubstr("parameter \"p0\" has strides [1,2], and safetensors files hold row-major tensors"));
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
    DistributedDataParallelOptions in_place;
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

TEST(DistributedDataParallel, R7ARankThatSaysNothingInTheFirstStepIsWarnedUnlessItHasNoData) {
  enum class Rank1 { says_nothing, has_no_data, has_no_gradients };
  for (auto const does : {Rank1::says_nothing, Rank1::has_no_data, Rank1::has_no_gradients}) {
    ::testing::internal::CaptureStderr();
    on_ranks(2, [&](World const& world) {
      ToyModel model({5, 6});
      DistributedDataParallel ddp(world, model.parameters());
      for (int step = 0; step < 2; ++step) {
        bool const marks = world.rank() == 0;
        ddp.set_weight(marks || does != Rank1::has_no_data ? 1 : 0);
        if (marks) mark_all(ddp);
        for (std::size_t p = 0; !marks && does == Rank1::has_no_gradients && p < 2; ++p) ddp.no_gradient(p);
        ddp.synchronize();
      }
    });
    auto const told = ::testing::internal::GetCapturedStderr();
    std::string const words =
        "this rank said of no parameter whether it has a gradient, so all count as zero";
    EXPECT_EQ(told.find(words) != std::string::npos, does == Rank1::says_nothing) << told;
    EXPECT_EQ(told.find(words), told.rfind(words)) << "once";
  }
}

}  // namespace
}  // namespace ddp::testing
