// Whether a World can go on after a loss.
#pragma once

#include <string>

#include "parallel/world/world_state.hpp"

namespace ddp {

/// Why World::rebuild() would refuse; empty if it would not, as far as this rank knows.
[[nodiscard]] std::string why_not_rebuilt(WorldState const& state);

}  // namespace ddp
