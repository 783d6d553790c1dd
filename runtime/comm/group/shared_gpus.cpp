#include "comm/group/shared_gpus.hpp"

#include <algorithm>
#include <vector>

#include "core/system/host_identity.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

bool same_card(RankLocation const& a, RankLocation const& b) {
  if (a.device.kind != DeviceKind::cuda || b.device.kind != DeviceKind::cuda) return false;
  return a.uuid == b.uuid || (a.host == b.host && a.card == b.card);
}

template <class Together>
std::string who_share(std::span<RankLocation const> ranks, Together const& are_together,
                      bool with_hosts = false) {
  auto const named = [&](std::size_t r) {
    std::string const number = text(number_of(ranks, r));
    return with_hosts ? text(number, " (on ", host_name(ranks[r].host), ")") : number;
  };
  std::vector<std::string> groups;
  std::vector<bool> listed(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (listed[r]) continue;
    std::vector<std::string> together{named(r)};
    for (std::size_t other = r + 1; other < ranks.size(); ++other) {
      if (!are_together(ranks[r], ranks[other])) continue;
      together.push_back(named(other));
      listed[other] = true;
    }
    if (together.size() > 1)
      groups.push_back(text("ranks ", join(together, ", "), " share GPU ", ranks[r].card));
  }
  return join(groups, "; ");
}

}  // namespace

std::string shared_gpus(std::span<RankLocation const> ranks) { return who_share(ranks, same_card); }

std::string shared_in_one_process(std::span<RankLocation const> ranks) {
  return who_share(ranks, [](RankLocation const& a, RankLocation const& b) {
    return same_card(a, b) && a.host == b.host && a.process == b.process;
  });
}

std::string shared_between_hosts(std::span<RankLocation const> ranks) {
  auto const apart = [](RankLocation const& a, RankLocation const& b) {
    return same_card(a, b) && a.host != b.host;
  };
  return who_share(ranks, apart, true);
}

bool share_unasked(std::span<RankLocation const> ranks) {
  for (auto rank = ranks.begin(); rank != ranks.end(); ++rank) {
    if (std::any_of(rank + 1, ranks.end(), [&](RankLocation const& other) {
          return same_card(*rank, other) && rank->uuid == other.uuid && rank->slice == other.slice;
        }))
      return true;
  }
  return false;
}

}  // namespace ddp
