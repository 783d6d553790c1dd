// Compares what the ranks of a communicator say of their operations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/nccl/calls/published_calls.hpp"

namespace ddp {

/// Walks along the published records: compares operations of this host's ranks with those of its first rank,
/// and operations of other hosts' first ranks with those of rank 0, as far as they are known. One thread at
/// a time.
class CallMatcher {
 public:
  CallMatcher(std::shared_ptr<PublishedCalls const> calls, std::vector<Rank> world_ranks);

  /// Compares new records. Returns the first difference.
  [[nodiscard]] std::optional<Failure> compare();
  /// The same for this host's ranks.
  [[nodiscard]] std::optional<Failure> compare_here();
  /// Up to which number the ranks of this host have called the same operations.
  [[nodiscard]] std::uint64_t agreed() const noexcept;
  /// The ranks (of the communicator) that are known not to have called `operation` of this rank.
  [[nodiscard]] std::vector<std::size_t> missing(Fingerprint const& operation) const;

 private:
  // A place in the records of one rank.
  struct Cursor {
    std::size_t rank = 0;
    std::uint64_t next = 1;
  };
  struct Lane {
    Cursor first;
    Cursor second;
    bool here = false;  // both are on this host
    std::uint64_t agreed = 0;
  };
  [[nodiscard]] std::optional<Fingerprint> peek(Cursor& cursor) const;
  [[nodiscard]] std::optional<Failure> compare(Lane& lane) const;

  std::shared_ptr<PublishedCalls const> calls_;
  std::vector<Rank> world_ranks_;
  std::vector<Lane> lanes_;
};

}  // namespace ddp
