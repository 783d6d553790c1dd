// World of a process that was started alone, and what the environment may say.
#include "ddp/parallel/world.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "parallel/world/terminate_report.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/fakes/other_locale.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

auto* const kCpus = VirtualCpus::before_all_tests(2);

using ::testing::EndsWith;
using ::testing::HasSubstr;

class Variable {
 public:
  Variable(char const* name, char const* value) : name_(name) { ::setenv(name, value, 1); }
  Variable(Variable const&) = delete;
  Variable& operator=(Variable const&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  char const* name_;
};

TEST(World, AloneItIsOneRankOnTheCpu) {
  World const world = World::init();
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.communicator().backend(), "solo");
  world.barrier();
}

TEST(World, TheEnvironmentOverridesTimeouts) {
  Variable const timeout("DDP_TIMEOUT", "1.5");
  Variable const init_timeout("DDP_INIT_TIMEOUT", "2");
  World const world = World::init({.timeout = std::chrono::seconds(7)});
  EXPECT_EQ(world.options().timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(world.options().init_timeout, std::chrono::seconds(2));
}

// The program's mistake, so no BadEnvironment, which ends a program as its user's.
TEST(World, OptionsOutOfRangeAreRefusedWhateverTheEnvironmentSays) {
  struct Case {
    WorldOptions options;
    char const* expected;
  };
  auto const expect_refused = [](char const* environment) {
    for (Case const& each : {Case{{.timeout = {}}, "WorldOptions: timeouts must be positive"},
                             Case{{.init_timeout = std::chrono::seconds(-1)}, "timeouts must be positive"},
                             Case{{.comm_sms = -1}, "WorldOptions: comm_sms is -1, expected 0 or more"}}) {
      auto const error = error_of([&] {
        try {
          static_cast<void>(World::init(each.options));
        } catch (BadEnvironment const&) {
          ADD_FAILURE() << environment;
          throw;
        }
      });
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr(each.expected)) << environment;
    }
  };
  expect_refused("nothing");
  Variable const sms("DDP_COMM_SMS", "16");
  {
    Variable const timeout("DDP_TIMEOUT", "5");
    Variable const init_timeout("DDP_INIT_TIMEOUT", "5");
    expect_refused("other values");
  }
  Variable const timeout("DDP_TIMEOUT", "soon");
  Variable const rank("RANK", "first");
  expect_refused("nonsense");
}

TEST(World, TheEnvironmentHasADecimalPointInEveryLocale) {
  OtherLocale const german;
  Variable const timeout("DDP_TIMEOUT", "2.5");
  EXPECT_EQ(World::init().options().timeout, std::chrono::milliseconds(2500));
  if (!OtherLocale::has_comma_in_c()) GTEST_SKIP() << "localedef makes no locale of C here";
}

TEST(World, AsLongAsItTakesIsATimeout) {
  for (auto const endless : {std::chrono::milliseconds::max(), Deadline::Duration(std::chrono::years(300))}) {
    auto worlds = World::in_process(2, {.timeout = endless, .init_timeout = endless});
    run_ranks(2, [&](int rank) {
      World& world = worlds[static_cast<std::size_t>(rank)];
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world.barrier();
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(world.all_reduce_scalar(1), 2);
      EXPECT_EQ(world.subgroup(std::vector<Rank>{world.rank()})->size(), 1);
    });
  }
}

TEST(World, RelativeFoldersAreWhereTheProgramWasWhenItWasMade) {
  TemporaryFolder const folder;
  std::vector<World> worlds;
  {
    InFolder const start(folder.path() / "a");
    worlds = World::in_process(1, {.trace = "trace", .statistics = "steps"});
  }
  InFolder const later(folder.path() / "b");
  EXPECT_EQ(worlds[0].options().statistics, (folder.path() / "a" / "steps").string());
  EXPECT_EQ(worlds[0].trace()->file(), folder.path() / "a" / "trace" / "rank0.json");
  Variable const trace("DDP_TRACE", "trace");
  EXPECT_EQ(World::init().options().trace, (folder.path() / "b" / "trace").string());
}

// A15: nobody reads DDP_TIMEOUT for these.
TEST(World, ATimeoutInProcessAdvisesTheOptionThatWasGiven) {
  auto const worlds = World::in_process(2, {.timeout = std::chrono::milliseconds(200)});
  Tensor const value = Tensor::zeros({4}, DType::f32);
  EXPECT_THAT(message_of([&] {
                worlds[0].communicator().all_reduce(value, ReduceOp::sum(), worlds[0].stream());
                worlds[0].stream().synchronize();
              }),
              EndsWith("or raise WorldOptions::timeout"));
}

// The model's device has a communicator of its own, beside the World's.
TEST(World, ATimeoutOnAnotherDeviceAdvisesTheSame) {
  auto const worlds = World::in_process(2, {.timeout = std::chrono::seconds(2)});
  std::array<ToyModel, 2> models{ToyModel({5}), ToyModel({5})};
  std::array<std::optional<DistributedDataParallel>, 2> ranks;
  run_ranks(2, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    auto parameters = models[r].parameters();
    parameters[0].value.device = Device{DeviceKind::cpu, DeviceIndex{1}};
    ranks[r].emplace(worlds[r], parameters);
  });
  EXPECT_THAT(message_of([&] {
                mark_all(*ranks[0]);
                ranks[0]->synchronize();
              }),
              EndsWith("or raise WorldOptions::timeout"));
}

TEST(World, ATimeoutAdvisesTheVariableThatOverridesTheOption) {
  EXPECT_EQ(World::init().communicator_options().timeout_setting, "DDP_TIMEOUT");
}

TEST(World, ACpuHasNoSmsToSetAside) {
  Variable const sms("DDP_COMM_SMS", "16");
  World const world = World::init();
  EXPECT_EQ(world.options().comm_sms, 16);
  EXPECT_EQ(world.compute_sms(), 0);
  EXPECT_EQ(world.make_comm_stream(Device{})->device(), Device{});
}

TEST(World, AllReduceScalarReducesOneNumberOfEachRank) {
  on_ranks(3, [](World const& world) {
    double const mine = world.rank().value() + 0.25;
    EXPECT_EQ(world.all_reduce_scalar(mine), 3.75);
    EXPECT_EQ(world.all_reduce_scalar(mine, ReduceOp::max()), 2.25);
    EXPECT_EQ(world.all_reduce_scalar(mine, ReduceOp::average()), 1.25);
    EXPECT_EQ(mine, world.rank().value() + 0.25);
  });
}

TEST(World, AllReduceScalarEndsByTheDeadline) {
  auto worlds = World::in_process(2, {.timeout = std::chrono::milliseconds(100)});
  auto const error = error_of<CommError>([&] { static_cast<void>(worlds[0].all_reduce_scalar(1)); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
}

// On a CPU; tests/gpu/own_stream_test.cpp has the rest.
TEST(World, AnOwnStreamMustFitTheRanksDevice) {
  auto const with = [](auto stream) {
    return World::init({.stream = [=](Device device) -> std::shared_ptr<Stream> { return stream(device); }});
  };
  EXPECT_EQ(with([](Device) { return nullptr; }).device(), Device{});
  std::shared_ptr<Stream> const calling_thread = HostStream::inline_stream();
  EXPECT_EQ(&with([&](Device) { return calling_thread; }).stream(), calling_thread.get());
  EXPECT_THAT(message_of([&] { with([](Device) { return std::make_shared<HostStream>(); }); }),
              HasSubstr("computes in the calling thread"));
  EXPECT_THAT(message_of([&] { with([](Device) { return std::make_shared<HostStream>(DeviceIndex{1}); }); }),
              HasSubstr("expected a stream of cpu:0, which this rank computes on, found one of cpu:1"));
}

TEST(World, NonsenseInTheEnvironmentIsRefusedByName) {
  for (char const* const value : {"0.0004", "", "soon", "-1", "0", "5s", "nan"}) {
    Variable const timeout("DDP_TIMEOUT", value);
    EXPECT_THAT(message_of([] { static_cast<void>(World::init()); }), HasSubstr("DDP_TIMEOUT=")) << value;
  }
  for (char const* const value : {"", "some", "-1", "16x", "1.5"}) {
    Variable const sms("DDP_COMM_SMS", value);
    EXPECT_THAT(message_of([] { static_cast<void>(World::init()); }), HasSubstr("DDP_COMM_SMS=")) << value;
  }
  Variable const backend("DDP_BACKEND", "carrier-pigeon");
  auto const message = message_of([] { static_cast<void>(World::init()); });
  EXPECT_THAT(message, HasSubstr("carrier-pigeon"));
  EXPECT_THAT(message, HasSubstr("there is: solo"));
}

}  // namespace
}  // namespace ddp::testing
