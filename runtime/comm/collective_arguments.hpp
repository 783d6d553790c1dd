// Arguments of split() and allocate(), exchanged and then judged on every rank alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp {

/// What a rank of a communicator of `size` gives the others of its call of split(): the same number of words
/// on every rank.
[[nodiscard]] std::vector<std::int32_t> split_request(std::span<Rank const> ranks, Rank me, int size);
/// Throws Error(invalid_argument), the same on every rank, unless all ranks' requests, one after another, fit
/// together. `world_ranks`: of the communicator, for messages.
void check_split_requests(std::span<std::int32_t const> requests, std::span<Rank const> world_ranks);

/// Throws Error(invalid_argument), the same on every rank, unless all ranks ask for the same size.
void check_allocation_sizes(std::span<std::uint64_t const> bytes, std::span<Rank const> world_ranks);

}  // namespace ddp
