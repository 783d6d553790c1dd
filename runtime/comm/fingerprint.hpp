// Operations, and what a rank publishes about one: other ranks compare it, and error messages show it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/step_mark.hpp"
#include "ddp/comm/reduce_op.hpp"
#include "ddp/core/dtype.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// What ranks can do together.
enum class OperationKind : std::uint8_t {
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  barrier,
  replay  ///< of operations that were recorded
};

/// "all_reduce".
[[nodiscard]] char const* to_string(OperationKind kind) noexcept;

/// One operation with checked arguments, as backends and decorators see it.
struct Operation {
  OperationKind kind = OperationKind::barrier;  ///< what is done
  void const* in = nullptr;                     ///< null if the operation reads nothing
  void* out = nullptr;                          ///< null if it writes nothing; of a replay the RecordedGraph
  std::size_t count = 0;                        ///< n, as the functions of Communicator say
  DType dtype = DType::u8;                      ///< of both
  ReduceOp op{};                                ///< of reductions
  Rank root{};                                  ///< of a reduce or a broadcast
  /// If a decorator passes an operation on in parts: the count n of the whole, which ranks compare and
  /// messages name. 0: not a part.
  std::size_t whole = 0;
  StepMark begins{};  ///< the step that it begins
};

/// One operation of one rank. A plain value without padding: it lies in memory that ranks share.
struct Fingerprint {
  /// Its number among the communicator's operations, from 1.
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  OperationKind kind = OperationKind::barrier;
  DType dtype = DType::u8;
  ReduceOp::Kind reduction = ReduceOp::Kind::sum;
  bool scaled = false;
  std::int32_t root = 0;  ///< a rank of the communicator
  StepMark begins{};
  friend bool operator==(Fingerprint const&, Fingerprint const&) noexcept = default;
};

/// Of `operation`, this rank's number `sequence`.
[[nodiscard]] Fingerprint fingerprint_of(Operation const& operation, std::uint64_t sequence = 0) noexcept;

/// Whether ranks' elements become one.
[[nodiscard]] constexpr bool is_reduction(OperationKind kind) noexcept {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter;
}
/// Whether the input or the output has size() times n elements.
[[nodiscard]] constexpr bool has_block_of_every_rank(OperationKind kind) noexcept {
  return kind == OperationKind::reduce_scatter || kind == OperationKind::all_gather ||
         kind == OperationKind::all_to_all;
}

// Below, `world_ranks` are the members' ranks in the world, which error messages name.

/// "all_reduce (sum) of f32[256]", "broadcast from rank 1 of f32[1]".
[[nodiscard]] std::string describe(Fingerprint const& said, std::span<Rank const> world_ranks);
/// What a rank is doing: "operation 12, all_reduce (sum) of f32[256]".
[[nodiscard]] std::string describe_activity(Fingerprint const& said, std::span<Rank const> world_ranks);

/// The failure of two ranks (of the communicator) that called different collectives.
[[nodiscard]] Failure mismatch_of(std::size_t rank, Fingerprint const& said, std::size_t other,
                                  Fingerprint const& other_said, std::span<Rank const> world_ranks);

/// The failure, equal on every rank, if ranks (of the communicator) differ in their operations of one number
/// or, where these begin a step, in SinceLastStep; nullopt if they do not.
[[nodiscard]] std::optional<Failure> find_difference(
    std::function<Fingerprint const&(std::size_t rank)> const& said_by, std::span<Rank const> world_ranks);
/// The failure if ranks (of the communicator) whose operations begin the same step differ in SinceLastStep;
/// nullopt if they do not.
[[nodiscard]] std::optional<Failure> find_different_loops(
    std::function<StepMark(std::size_t rank)> const& mark_of, std::span<Rank const> world_ranks);

// Texts for ranks that are described already and begin a step differently.

inline constexpr char const* kCallTheSame =
    "; every rank must call the same operations, with the same counts and types, in the same order";
/// `others`: "rank 1 in 8".
[[nodiscard]] std::string describe_other_step(Rank rank, std::uint64_t step, std::string_view others);
/// `who`: "2 of 4 ranks" gave a weight.
[[nodiscard]] std::string describe_some_weights(std::string_view who, std::uint64_t step);
/// `changes`: they differ in changes of parameters, otherwise in cleared gradients.
[[nodiscard]] std::string describe_lone_step(std::string_view lone, std::string_view others, bool changes,
                                             std::uint64_t step);

}  // namespace ddp
