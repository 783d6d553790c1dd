// Compares what the ranks of a communicator say of their operations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/nccl/calls/published_calls.hpp"

namespace ddp {

/// Walks along the published records: compares operations of this host's ranks with those of its first rank,
/// and operations of all other ranks with those of rank 0. One thread at a time.
class CallMatcher {
 public:
  CallMatcher(std::shared_ptr<PublishedCalls const> calls, std::vector<Rank> world_ranks);

  /// Compares new records. Returns the first difference.
  [[nodiscard]] std::optional<Failure> compare();
  /// The same for this host's ranks.
  [[nodiscard]] std::optional<Failure> compare_here();
  /// Up to which number ranks have called the same operations. Ranks that are not seen count as equal.
  struct Agreed {
    std::uint64_t everywhere = 0;  ///< all ranks
    std::uint64_t here = 0;        ///< those of this host
  };
  [[nodiscard]] Agreed agreed() const noexcept;
  /// The ranks (of the communicator) that have not called `operation` of this rank, as far as it can be seen.
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
