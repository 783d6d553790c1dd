#include "ddp/core/failure.hpp"

#include <algorithm>
#include <array>

#include "core/system/signal_name.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

using Manner = Failure::Manner;

// In the order of Manner.
constexpr std::array<std::string_view, 8> kManners{"killed", "exited", "stopped", "left",
                                                   "silent", "threw",  "refused", "differs"};
static_assert(kManners.size() == static_cast<std::size_t>(Manner::differs) + 1);

// How a lost rank ended.
std::string how(Failure const& failure) {
  if (failure.manner == Manner::left) return "left the group";
  if (!failure.detail.empty()) return failure.detail;
  std::string const where = failure.host.empty() ? std::string() : text(" on ", failure.host);
  if (failure.manner == Manner::exited) {
    return text("exited with code ", failure.status, where,
                failure.status == 0 ? " without leaving the group" : "");
  }
  if (failure.status == 0) return {};
  return text("killed by signal ", failure.status, " (", signal_name(failure.status), ")", where);
}

std::string describe_loss(Failure const& failure, std::string_view by) {
  bool const left = failure.manner == Manner::left;
  std::string const words = how(failure);
  Rank const rank = failure.ranks.front();
  if (!failure.by) {
    return text(failure.operation, failure.operation.empty() ? "" : ": ", "rank ", rank,
                left ? " has left" : " died", words.empty() ? "" : ": ", words);
  }
  return text("rank ", rank, " is gone", words.empty() ? "" : text(" (", words, ")"), " while ", by,
              " was in ", failure.operation, left ? failure.detail : "");
}

std::string describe_wait(Failure const& failure, std::string_view by) {
  if (!failure.by) {
    return text(failure.operation, " timed out after ", seconds(failure.waited), " s: ", failure.detail);
  }
  std::vector<Rank> ranks = failure.ranks;
  std::ranges::sort(ranks);
  return text(by, " waited ", seconds(failure.waited), " s in ", failure.operation,
              ranks.empty()       ? ""
              : ranks.size() == 1 ? " for rank "
                                  : " for ranks ",
              join(ranks, ", "), failure.detail);
}

std::string describe(Failure const& failure, std::string_view by) {
  switch (failure.manner) {
    case Manner::killed:
    case Manner::exited:
    case Manner::left:
      if (failure.ranks.empty() || failure.by == failure.ranks.front()) break;  // the rank reports itself
      return describe_loss(failure, by);
    case Manner::stopped:
    case Manner::silent:
      if (failure.operation.empty()) break;
      return describe_wait(failure, by);
    default:
      break;
  }
  return text(failure.operation, failure.operation.empty() ? "" : ": ", failure.detail);
}

}  // namespace

std::string_view to_string(Manner manner) noexcept {
  auto const index = static_cast<std::size_t>(manner);
  return index < kManners.size() ? kManners[index] : "unknown";
}

std::string to_string(Failure const& failure, std::string_view by) {
  std::string const own = failure.by && by.empty() ? text("rank ", *failure.by) : std::string(by);
  return text(failure.ended_by ? text("the group was ended by rank ", *failure.ended_by, ": ") : "",
              describe(failure, own));
}

}  // namespace ddp
