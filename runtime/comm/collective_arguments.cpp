#include "comm/collective_arguments.hpp"

#include <algorithm>

#include "core/record.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// An exchanged group without its padding: "2, 0".
std::string list(std::span<std::int32_t const> group) {
  auto const end = std::find_if(group.begin(), group.end(), [](std::int32_t member) { return member < 0; });
  return join(std::span(group.begin(), end), ", ");
}

}  // namespace

std::vector<std::int32_t> split_request(std::span<Rank const> ranks, Rank me, int size) {
  auto const members = static_cast<std::size_t>(size);
  std::vector<std::int32_t> request(members, -1);
  for (std::size_t i = 0; i < std::min(ranks.size(), members); ++i) request[i] = ranks[i].value();
  bool bad = ranks.size() > members;
  std::vector<bool> seen(members);
  for (Rank const member : ranks) {
    bool const known = member.value() >= 0 && member.index() < members;
    if (!known || seen[member.index()]) bad = true;
    if (known) seen[member.index()] = true;
  }
  if (!ranks.empty() && !seen[me.index()]) bad = true;
  request.push_back(bad ? 1 : 0);
  return request;
}

void check_split_requests(std::span<std::int32_t const> requests, std::span<Rank const> world_ranks) {
  std::size_t const members = world_ranks.size();
  std::size_t const width = members + 1;
  for (std::size_t r = 0; r < members; ++r) {
    auto const group = requests.subspan(r * width, members);
    require(requests[r * width + members] == 0, [&] {
      return text(
          "split: rank ", world_ranks[r],
          " gave a group in which a rank stands twice or is not there, or that it is not in itself: [",
          list(group), "]");
    });
    for (std::int32_t const member : group) {
      if (member < 0) break;
      auto const theirs = requests.subspan(static_cast<std::size_t>(member) * width, members);
      require(std::equal(group.begin(), group.end(), theirs.begin()), [&] {
        return text("split: ranks ", r, " and ", member,
                    " of this communicator are in one group and gave different lists: [", list(group),
                    "] and [", list(theirs), "]");
      });
    }
  }
}

void check_allocation_sizes(std::span<std::uint64_t const> bytes, std::span<Rank const> world_ranks) {
  std::size_t const r = first_to_differ(bytes);
  require(r == 0, [&] {
    return text("allocate: rank ", world_ranks[0], " asks for ", bytes[0], " bytes, rank ", world_ranks[r],
                " for ", bytes[r], "; every rank must ask for the same size");
  });
}

void check_made(std::span<std::uint8_t const> made, Bytes bytes, std::span<Rank const> world_ranks) {
  auto const failed = std::find(made.begin(), made.end(), std::uint8_t{0});
  if (failed == made.end()) return;
  Rank const rank = world_ranks[static_cast<std::size_t>(failed - made.begin())];
  throw Error(ErrorCode::out_of_memory,
              text("allocate: rank ", rank, " has no memory for ", to_string(bytes)));
}

}  // namespace ddp
