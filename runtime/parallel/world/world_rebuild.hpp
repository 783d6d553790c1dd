// How a World goes on after a loss, and with whom.
#pragma once

#include <string>

#include "ddp/parallel/replicated.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp {

/// Why World::rebuild() would refuse; empty if it would not, as far as this rank knows.
[[nodiscard]] std::string why_not_rebuilt(WorldState const& state);

/// Of a newcomer: waits until the others take it in, and has their values then. Throws as World::rebuild().
void take_part(WorldState& state, Replicated const& replicated);

}  // namespace ddp
