// Tests whose ranks are processes: every rank runs the same tests in the same order.
#pragma once

#include "ddp/parallel/world.hpp"

namespace ddp::testing {

/// This process's World, made by the main function before the first test.
[[nodiscard]] World const& world();

}  // namespace ddp::testing
