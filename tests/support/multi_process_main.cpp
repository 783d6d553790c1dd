#include <gtest/gtest.h>

#include <optional>

#include "support/multi_process.hpp"

namespace {
std::optional<ddp::World>& the_world() {
  static std::optional<ddp::World> world;
  return world;
}
}  // namespace

namespace ddp::testing {
World const& world() { return the_world().value(); }
}  // namespace ddp::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  the_world() =
      ddp::World::init({.timeout = std::chrono::seconds(60), .init_timeout = std::chrono::seconds(60)});
  int const result = RUN_ALL_TESTS();
  the_world().reset();  // leaves the group
  return result;
}
