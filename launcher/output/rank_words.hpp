// Words about ranks, for people. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ddp/core/ids.hpp"

namespace ddp::launcher {

/// "rank 3", "ranks 0-4,6": `ranks` ascending.
[[nodiscard]] std::string list_ranks(std::span<Rank const> ranks);

/// What `rank` says, with "this rank" for its own "rank 3": so that ranks which say the same can be told.
[[nodiscard]] std::string without_own_number(std::string_view words, Rank rank);

}  // namespace ddp::launcher
