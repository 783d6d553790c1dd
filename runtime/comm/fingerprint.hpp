// What a rank publishes about an operation: other ranks compare it, and error messages show it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ddp/comm/communicator.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// One operation of one rank. A plain value: it lies in memory that ranks share.
struct Fingerprint {
  /// Its number among the communicator's operations, from 1.
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  Communicator::OperationKind kind = Communicator::OperationKind::barrier;
  DType dtype = DType::u8;
  ReduceOp::Kind reduction = ReduceOp::Kind::sum;
  bool scaled = false;
  std::int32_t root = 0;  ///< a rank of the communicator
  StepMark begins{};
  friend bool operator==(Fingerprint const&, Fingerprint const&) noexcept = default;
};

/// Whether ranks' elements become one.
[[nodiscard]] constexpr bool is_reduction(Communicator::OperationKind kind) noexcept {
  return kind == Communicator::OperationKind::all_reduce || kind == Communicator::OperationKind::reduce ||
         kind == Communicator::OperationKind::reduce_scatter;
}
/// Whether the input or the output has size() times n elements.
[[nodiscard]] constexpr bool has_block_of_every_rank(Communicator::OperationKind kind) noexcept {
  return kind == Communicator::OperationKind::reduce_scatter ||
         kind == Communicator::OperationKind::all_gather || kind == Communicator::OperationKind::all_to_all;
}

// Below, `world_ranks` are the members' ranks in the world, which error messages name.

/// "all_reduce (sum) of f32[256]", "broadcast from rank 1 of f32[1]".
[[nodiscard]] std::string describe(Fingerprint const& said, std::span<Rank const> world_ranks);
/// What a rank is doing: "operation 12, all_reduce (sum) of f32[256]".
[[nodiscard]] std::string describe_activity(Fingerprint const& said, std::span<Rank const> world_ranks);

/// The failure of two ranks (of the communicator) that called different collectives.
[[nodiscard]] Failure mismatch_of(std::size_t rank, Fingerprint const& said, std::size_t other,
                                  Fingerprint const& other_said, std::span<Rank const> world_ranks);

/// The failure if ranks (of the communicator) whose operations begin the same step differ in SinceLastStep;
/// nullopt if they do not.
[[nodiscard]] std::optional<Failure> find_different_loops(
    std::function<StepMark(std::size_t rank)> const& mark_of, std::span<Rank const> world_ranks);
/// Its text, for ranks that are described already. `changes`: they differ in changes of parameters.
[[nodiscard]] std::string describe_lone_step(std::string_view lone, std::string_view others, bool changes,
                                             std::uint64_t step);

}  // namespace ddp
