#include "comm/nccl/calls/call_matcher.hpp"

#include <algorithm>
#include <utility>

namespace ddp {

CallMatcher::CallMatcher(std::shared_ptr<PublishedCalls const> calls, std::vector<Rank> world_ranks)
    : calls_(std::move(calls)), world_ranks_(std::move(world_ranks)) {
  std::size_t const first_here = calls_->first_here();
  for (std::size_t r = 0; r < world_ranks_.size(); ++r) {
    bool const here = calls_->is_here(r);
    if (here && r != first_here) lanes_.push_back({{first_here}, {r}, true, 0});
    if (r != 0 && calls_->hosts()[r] == r) lanes_.push_back({{0}, {r}, false, 0});
  }
}

// The next record that can be read, without going past it.
std::optional<Fingerprint> CallMatcher::peek(Cursor& cursor) const {
  for (;;) {
    std::uint64_t const published = calls_->published(cursor.rank);
    if (cursor.next > published) return std::nullopt;
    if (auto said = calls_->record(cursor.rank, cursor.next)) return said;
    // Overwritten, or unknown: skips records up to one that can be read.
    constexpr std::uint64_t kReadable = PublishedCalls::kRecords / 2;
    cursor.next = std::max(cursor.next + 1, published - std::min(published, kReadable));
  }
}

std::optional<Failure> CallMatcher::compare(Lane& lane) const {
  // Read before the records, so that those of this many collectives are there, or overwritten.
  std::uint64_t const both =
      std::min(calls_->collectives(lane.first.rank), calls_->collectives(lane.second.rank));
  for (;;) {
    auto const first = peek(lane.first);
    auto const second = first ? peek(lane.second) : std::nullopt;
    if (!second) {
      lane.agreed = std::max(lane.agreed, both);
      return std::nullopt;
    }
    // The numbers differ only if records were overwritten: the other rank has called this collective too, but
    // it is not known which one that was.
    if (first->sequence != second->sequence) {
      bool const first_is_behind = first->sequence < second->sequence;
      lane.agreed = (first_is_behind ? first : second)->sequence;
      ++(first_is_behind ? lane.first : lane.second).next;
      continue;
    }
    if (*first != *second)
      return mismatch_of(lane.first.rank, *first, lane.second.rank, *second, world_ranks_);
    lane.agreed = first->sequence;
    ++lane.first.next;
    ++lane.second.next;
  }
}

std::optional<Failure> CallMatcher::compare() {
  for (Lane& lane : lanes_) {
    if (auto difference = compare(lane)) return difference;
  }
  return std::nullopt;
}

std::optional<Failure> CallMatcher::compare_here() {
  for (Lane& lane : lanes_) {
    if (!lane.here) continue;
    if (auto difference = compare(lane)) return difference;
  }
  return std::nullopt;
}

std::uint64_t CallMatcher::agreed() const noexcept {
  std::uint64_t agreed = calls_->collectives();
  for (Lane const& lane : lanes_) {
    if (lane.here) agreed = std::min(agreed, lane.agreed);
  }
  return agreed;
}

std::vector<std::size_t> CallMatcher::missing(Fingerprint const& operation) const {
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < world_ranks_.size(); ++r) {
    if (calls_->knows(r) && calls_->collectives(r) < operation.sequence) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace ddp
