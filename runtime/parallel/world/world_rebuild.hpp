// How a World goes on after a loss, and with whom.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ddp/parallel/replicated.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp {

/// The first line in which two forms differ, each with a line for each tensor: its number, and what it is in
/// each of them; empty if there is none.
struct FormDifference {
  std::size_t line = 0;
  std::string one;
  std::string other;
};
[[nodiscard]] FormDifference first_difference(std::string_view one, std::string_view other);

/// Why World::rebuild() would refuse; empty if it would not, as far as this rank knows.
[[nodiscard]] std::string why_not_rebuilt(WorldState const& state, Replicated const& replicated);

/// Of a newcomer: waits until the others take it in, and has their values then. Throws as World::rebuild().
void take_part(WorldState& state, Replicated const& replicated);

}  // namespace ddp
