#include "comm/nccl/call_matcher.hpp"

#include <algorithm>
#include <utility>

namespace ddp {

CallMatcher::CallMatcher(std::shared_ptr<PublishedCalls const> board, Rank rank,
                         std::vector<Rank> world_ranks)
    : board_(std::move(board)), me_(rank.index()), world_ranks_(std::move(world_ranks)) {
  auto const mine = static_cast<std::int32_t>(me_);
  std::size_t const first_here = board_->hosts()[me_];
  auto const compare_collectives = [&](std::size_t first, std::size_t second, bool here) {
    collectives_.push_back({{first, std::nullopt, 0, 1}, {second, std::nullopt, 0, 1}, here, 0});
  };
  for (std::size_t r = 0; r < world_ranks_.size(); ++r) {
    auto const theirs = static_cast<std::int32_t>(r);
    bool const here = board_->is_here(r);
    if (here && r != first_here) compare_collectives(first_here, r, true);
    if (board_->sees_all() && r != 0 && (!here || r == first_here)) compare_collectives(0, r, false);
    messages_.push_back({{r, Kind::send, mine, 1}, {me_, Kind::recv, theirs, 1}, here, 0});
  }
}

// The next record that counts, without going past it.
std::optional<Fingerprint> CallMatcher::peek(Cursor& cursor) const {
  for (;;) {
    std::uint64_t const published = board_->published(cursor.rank);
    if (cursor.next > published) return std::nullopt;
    auto const said = board_->record(cursor.rank, cursor.next);
    if (!said) {  // overwritten, or unknown: those in between are not compared
      constexpr std::uint64_t kReadable = PublishedCalls::kRecords / 2;
      cursor.next = std::max(cursor.next + 1, published - std::min(published, kReadable));
      continue;
    }
    bool const counts =
        cursor.message ? said->kind == *cursor.message && said->peer == cursor.peer : !is_message(said->kind);
    if (counts) return said;
    ++cursor.next;
  }
}

std::optional<std::string> CallMatcher::compare(Lane& lane) const {
  // Read before the records, so that those of this many collectives are there, or overwritten.
  std::uint64_t const both =
      std::min(board_->collectives(lane.first.rank), board_->collectives(lane.second.rank));
  for (;;) {
    auto const first = peek(lane.first);
    auto const second = first ? peek(lane.second) : std::nullopt;
    if (!second) {
      if (!lane.first.message) lane.agreed = std::max(lane.agreed, both);
      return std::nullopt;
    }
    // The numbers differ only where records were overwritten. The other side has called that collective too,
    // whatever it was.
    if (first->sequence != second->sequence) {
      bool const first_is_behind = first->sequence < second->sequence;
      lane.agreed = (first_is_behind ? first : second)->sequence;
      ++(first_is_behind ? lane.first : lane.second).next;
      continue;
    }
    bool const same = lane.first.message ? first->count == second->count && first->dtype == second->dtype
                                         : *first == *second;
    if (!same) return describe(lane, *first, *second);
    lane.agreed = first->sequence;
    ++lane.first.next;
    ++lane.second.next;
  }
}

std::string CallMatcher::describe(Lane const& lane, Fingerprint const& first,
                                  Fingerprint const& second) const {
  if (!lane.first.message) {
    return describe_mismatch(lane.first.rank, first, lane.second.rank, second, world_ranks_);
  }
  return describe_mismatch({world_ranks_[me_], second.dtype, second.count},
                           {world_ranks_[lane.first.rank], first.dtype, first.count});
}

std::optional<std::string> CallMatcher::compare() {
  for (auto* const lanes : {&collectives_, &messages_}) {
    for (Lane& lane : *lanes) {
      if (auto difference = compare(lane)) return difference;
    }
  }
  return std::nullopt;
}

std::optional<std::string> CallMatcher::compare_here() {
  for (Lane& lane : collectives_) {
    if (!lane.here) continue;
    if (auto difference = compare(lane)) return difference;
  }
  return std::nullopt;
}

CallMatcher::Agreed CallMatcher::agreed() const noexcept {
  std::uint64_t const mine = board_->collectives();
  Agreed agreed{mine, mine};
  for (Lane const& lane : collectives_) {
    agreed.everywhere = std::min(agreed.everywhere, lane.agreed);
    if (lane.here) agreed.here = std::min(agreed.here, lane.agreed);
  }
  return agreed;
}

std::vector<std::size_t> CallMatcher::missing(Fingerprint const& operation) const {
  std::vector<std::size_t> ranks;
  if (operation.kind == Kind::send) return ranks;
  if (operation.kind == Kind::recv) {
    auto const peer = static_cast<std::size_t>(operation.peer);
    if (board_->sees(peer) && messages_[peer].agreed < operation.sequence) ranks.push_back(peer);
    return ranks;
  }
  for (std::size_t r = 0; r < world_ranks_.size(); ++r) {
    if (board_->sees(r) && board_->collectives(r) < operation.sequence) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace ddp
