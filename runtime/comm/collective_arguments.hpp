// Arguments of split() and allocate(), exchanged and then checked alike on every rank.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp {

/// What a rank of a communicator of `size` ranks sends the others about its call of split(); every rank sends
/// the same number of words.
[[nodiscard]] std::vector<std::int32_t> split_request(std::span<Rank const> ranks, Rank me, int size);
/// Throws Error(invalid_argument), the same on every rank, unless all ranks' requests, one after another, fit
/// together. `world_ranks`: of the communicator, for messages.
void check_split_requests(std::span<std::int32_t const> requests, std::span<Rank const> world_ranks);

/// Throws Error(invalid_argument), the same on every rank, unless all ranks ask for the same size.
void check_allocation_sizes(std::span<std::uint64_t const> bytes, std::span<Rank const> world_ranks);

/// Throws Error(out_of_memory) unless every rank has `made` its part.
void check_made(std::span<std::uint8_t const> made, Bytes bytes, std::span<Rank const> world_ranks);

/// Makes this rank's part of an allocation with `make()`. Either every rank has its part, or every rank
/// throws. `gather` returns what each rank passed to it. Throws what `make` or `gather` threw here, otherwise
/// as check_made().
template <class Make, class Gather>
[[nodiscard]] auto make_on_every_rank(Bytes bytes, std::span<Rank const> world_ranks, Make make,
                                      Gather gather) {
  decltype(make()) mine;
  std::exception_ptr problem;
  try {
    mine = make();
  } catch (...) {
    problem = std::current_exception();
  }
  auto const made = gather(std::vector<std::uint8_t>{problem ? std::uint8_t{0} : std::uint8_t{1}});
  if (problem) std::rethrow_exception(problem);
  check_made(made, bytes, world_ranks);
  return mine;
}

}  // namespace ddp
