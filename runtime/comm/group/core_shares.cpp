#include "comm/group/core_shares.hpp"

#include <cstddef>
#include <map>

#include "core/system/allowed_cpus.hpp"

namespace ddp {
namespace {

// Gives each rank a CPU of its own, as far as that is possible: a matching along augmenting paths.
class Matching {
 public:
  explicit Matching(std::span<CoreShare const> ranks) : ranks_(ranks) {}

  /// False if `rank` can have no CPU, even if others move. Then the ranks in asked(), which were asked to
  /// move, share too few CPUs; ranks that are placed later do not change that.
  [[nodiscard]] bool place(std::size_t rank) {
    asked_.assign(ranks_.size(), false);
    return find_place(rank);
  }
  [[nodiscard]] std::vector<bool> const& asked() const noexcept { return asked_; }

 private:
  bool find_place(std::size_t rank) {
    asked_[rank] = true;
    for (int const cpu : ranks_[rank].cpus) {
      if (users_.try_emplace(cpu, rank).second) return true;
    }
    for (int const cpu : ranks_[rank].cpus) {
      std::size_t const other = users_[cpu];
      if (asked_[other] || !find_place(other)) continue;
      users_[cpu] = rank;
      return true;
    }
    return false;
  }

  std::span<CoreShare const> ranks_;
  std::map<int, std::size_t> users_;  // by CPU: the rank that has it for itself
  std::vector<bool> asked_;
};

}  // namespace

CoreShare core_share() { return {allowed_cpu_numbers(), cpu_quotas()}; }

std::vector<bool> have_own_cores(std::span<CoreShare const> ranks) {
  std::vector<bool> own(ranks.size(), true);
  Matching matching(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (matching.place(rank)) continue;
    for (std::size_t r = 0; r < ranks.size(); ++r) own[r] = own[r] && !matching.asked()[r];
  }
  std::map<std::uint64_t, std::vector<std::size_t>> members;  // of each group with a quota
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (CpuQuota const& quota : ranks[rank].quotas) members[quota.group].push_back(rank);
  }
  for (CoreShare const& rank : ranks) {
    for (CpuQuota const& quota : rank.quotas) {
      auto const& together = members[quota.group];
      if (quota.cpus >= static_cast<double>(together.size())) continue;
      for (std::size_t const member : together) own[member] = false;
    }
  }
  return own;
}

}  // namespace ddp
