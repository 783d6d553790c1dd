#include "comm/fingerprint.hpp"

#include <array>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

Failure mismatch(std::vector<Rank> ranks, std::string words) {
  return {.code = ErrorCode::mismatch,
          .manner = Failure::Manner::differs,
          .ranks = std::move(ranks),
          .detail = std::move(words)};
}

// Two ranks begin a step, and not the same one.
std::string describe_steps(Rank rank, StepMark mark, Rank other, StepMark other_mark) {
  if (mark.step() != other_mark.step()) {
    return describe_other_step(rank, mark.step(), text("rank ", other, " in ", other_mark.step()));
  }
  return describe_some_weights(
      text("rank ", mark.weighted() ? rank : other, " and not on rank ", mark.weighted() ? other : rank),
      mark.step());
}

}  // namespace

char const* to_string(OperationKind kind) noexcept {
  static constexpr std::array kNames{"all_reduce", "reduce",    "reduce_scatter", "all_gather",
                                     "all_to_all", "broadcast", "barrier",        "replay"};
  static_assert(kNames.size() == static_cast<std::size_t>(OperationKind::replay) + 1);
  auto const index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown operation";
}

Fingerprint fingerprint_of(Operation const& operation, std::uint64_t sequence) noexcept {
  return {sequence,
          operation.whole != 0 ? operation.whole : operation.count,
          operation.kind,
          operation.dtype,
          operation.op.kind,
          operation.op.factor != nullptr,
          operation.root.value(),
          operation.begins};
}

std::string describe(Fingerprint const& said, std::span<Rank const> world_ranks) {
  std::string words = to_string(said.kind);
  if (said.kind == OperationKind::barrier) return words;
  if (said.kind == OperationKind::replay) {
    return said.count == 0 ? "the recording of a step"
                           : text("replay of ", said.count, " operations, step ", said.begins.step());
  }
  auto const root = [&] { return world_ranks[static_cast<std::size_t>(said.root)]; };
  if (is_reduction(said.kind)) {
    words += text(" (", said.scaled ? "scaled " : "", to_string(said.reduction), ")");
  }
  words += text(" of ", said.dtype, "[", said.count, "]");
  if (said.kind == OperationKind::reduce) words += text(" to rank ", root());
  if (said.kind == OperationKind::broadcast) words += text(" from rank ", root());
  if (said.begins.begins()) words += text(", the first of step ", said.begins.step());
  return words;
}

std::string describe_activity(Fingerprint const& said, std::span<Rank const> world_ranks) {
  return text("operation ", said.sequence, ", ", describe(said, world_ranks));
}

Failure mismatch_of(std::size_t rank, Fingerprint const& said, std::size_t other,
                    Fingerprint const& other_said, std::span<Rank const> world_ranks) {
  std::vector<Rank> const ranks{world_ranks[rank], world_ranks[other]};
  if (said.begins != other_said.begins && said.begins.begins() && other_said.begins.begins()) {
    return mismatch(ranks, describe_steps(ranks[0], said.begins, ranks[1], other_said.begins));
  }
  std::string const number = said.sequence == other_said.sequence
                                 ? text("operation ", said.sequence)
                                 : text("operation ", said.sequence, " and ", other_said.sequence);
  return mismatch(
      ranks, text(number, " differs between ranks: rank ", ranks[0], " called ", describe(said, world_ranks),
                  ", rank ", ranks[1], " called ", describe(other_said, world_ranks), kCallTheSame));
}

std::optional<Failure> find_difference(std::function<Fingerprint const&(std::size_t rank)> const& said_by,
                                       std::span<Rank const> world_ranks) {
  Fingerprint const& first = said_by(0);
  for (std::size_t r = 1; r < world_ranks.size(); ++r) {
    if (said_by(r) != first) return mismatch_of(0, first, r, said_by(r), world_ranks);
  }
  if (!first.begins.begins()) return std::nullopt;
  return find_different_loops([&](std::size_t r) { return said_by(r).begins; }, world_ranks);
}

std::optional<Failure> find_different_loops(std::function<StepMark(std::size_t rank)> const& mark_of,
                                            std::span<Rank const> world_ranks) {
  unsigned all = 0;
  for (std::size_t r = 0; r < world_ranks.size(); ++r) all |= mark_of(r).since().bits;
  if (!SinceLastStep::differ(all)) return std::nullopt;
  bool const changes = (all & 3U) == 3U;
  unsigned const did = changes ? 1 : 4;
  std::uint64_t step = 0;
  std::vector<Rank> others;
  std::vector<Rank> lone;
  for (std::size_t r = 0; r < world_ranks.size(); ++r) {
    StepMark const mark = mark_of(r);
    unsigned const bits = mark.since().bits;
    if (bits != 0) step = mark.step();
    if ((bits & did) != 0) others.push_back(world_ranks[r]);
    if ((bits & 2U * did) != 0) lone.push_back(world_ranks[r]);
  }
  std::string const who = text("rank", lone.size() == 1 ? " " : "s ", join(lone, ", "));
  return mismatch(std::move(lone), describe_lone_step(who, text("rank ", others[0]), changes, step));
}

std::string describe_other_step(Rank rank, std::uint64_t step, std::string_view others) {
  return text("ranks are in different steps: rank ", rank, " is in synchronised step ", step, ", ", others,
              "; does a rank skip synchronize(), or use no_sync() where others do not?");
}

std::string describe_some_weights(std::string_view who, std::uint64_t step) {
  return text("set_weight() was called on ", who, " in step ", step,
              "; call it on all of them (0 for a rank without samples) or on none. A rank in join() gives a "
              "weight only where uneven is divide_by_live and reduction is average");
}

std::string describe_lone_step(std::string_view lone, std::string_view others, bool changes,
                               std::uint64_t step) {
  return text("ranks are at different places of their loops in synchronised step ", step, ": before it ",
              lone, changes ? " changed no parameter" : " cleared no gradient", " since the last step, ",
              others, " did. Each backward() is a step of all ranks: put no_sync() around one of ", lone,
              " alone");
}

}  // namespace ddp
