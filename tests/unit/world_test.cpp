// World of a process that was started alone, and what the environment may say.
#include "ddp/parallel/world.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "support/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

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

TEST(World, ACpuHasNoSmsToSetAside) {
  Variable const sms("DDP_COMM_SMS", "16");
  World const world = World::init();
  EXPECT_EQ(world.options().comm_sms, 16);
  EXPECT_EQ(world.compute_sms(), 0);
  EXPECT_EQ(world.make_comm_stream(Device{})->device(), Device{});
}

TEST(World, NonsenseInTheEnvironmentIsRefusedByName) {
  for (char const* const value : {"", "soon", "-1", "0", "5s", "nan"}) {
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
