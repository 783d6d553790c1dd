#include "launcher/report/flight_log.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

using Entry = FlightRecorder::Entry;

// The collectives of one communicator that one rank remembers, by number.
using Calls = std::map<std::uint64_t, Entry>;

// By communicator, then rank: those that have the communicator, whether or not they called anything on it.
using Communicators = std::map<std::string, std::map<Rank, Calls>>;

Communicators sort(std::span<RankFlight const> ranks) {
  Communicators sorted;
  for (RankFlight const& flight : ranks) {
    if (!flight.log) continue;
    for (std::string const& name : flight.log->communicators) {
      if (name != FlightRecorder::kFurtherNames) sorted[name][flight.rank];
    }
    for (Entry const& entry : flight.log->entries) {
      std::string const& name = flight.log->communicators[entry.communicator];
      if (entry.sequence == 0 || name == FlightRecorder::kFurtherNames) continue;
      sorted[name][flight.rank].emplace(entry.sequence, entry);
    }
  }
  return sorted;
}

/// "rank 2", "ranks 0, 1".
std::string named(std::vector<Rank> const& ranks) {
  return text(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "));
}

// Ranks that agree are named together, the largest group first.
std::string describe(std::map<std::string, std::vector<Rank>> const& calls) {
  std::vector<std::pair<std::string, std::vector<Rank>>> groups(calls.begin(), calls.end());
  std::sort(groups.begin(), groups.end(), [](auto const& a, auto const& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size() : a.first < b.first;
  });
  std::vector<std::string> parts;
  for (auto const& [what, who] : groups) {
    parts.push_back(text(named(who), " called ", what));
  }
  return join(parts, "; ");
}

struct Difference {
  std::int64_t time_us = 0;  // when the first rank got there
  std::string words;
};

// What the ranks called as number `number` of a communicator.
struct Meeting {
  std::map<std::string, std::vector<Rank>> said;  // "nothing": not there yet
  std::vector<Rank> there;
  std::vector<Rank> missing;
  std::int64_t first_us = 0;  // when the first rank called it
};

Meeting meeting(std::map<Rank, Calls> const& calls, std::uint64_t number) {
  Meeting at;
  for (auto const& [rank, mine] : calls) {
    auto const found = mine.find(number);
    bool const called = found != mine.end();
    (called ? at.there : at.missing).push_back(rank);
    at.said[called ? ddp::describe(found->second) : "nothing"].push_back(rank);
    if (called && (at.first_us == 0 || found->second.time_us < at.first_us))
      at.first_us = found->second.time_us;
  }
  return at;
}

std::optional<Difference> first_difference(std::string const& name, std::map<Rank, Calls> const& calls) {
  std::uint64_t first = 1;  // that everybody remembers
  std::uint64_t last = 0;
  for (auto const& [rank, mine] : calls) {
    if (mine.empty()) continue;
    first = std::max(first, mine.begin()->first);
    last = std::max(last, mine.rbegin()->first);
  }
  for (std::uint64_t number = first; number <= last; ++number) {
    Meeting const at = meeting(calls, number);
    if (at.said.size() > 1) {
      return Difference{at.first_us, text("number ", number, " of ", name, ": ", describe(at.said))};
    }
  }
  return std::nullopt;
}

}  // namespace

std::string describe_last(FlightRecorder::Log const& log) {
  Entry const& last = log.entries.back();
  std::string const& name = log.communicators[last.communicator];
  return text(ddp::describe(last), last.sequence == 0 ? std::string{} : text(", number ", last.sequence),
              " of ", name);
}

std::optional<std::string> first_difference(std::span<RankFlight const> ranks) {
  std::optional<Difference> found;
  for (auto const& [name, calls] : sort(ranks)) {
    auto const difference = first_difference(name, calls);
    if (difference && (!found || difference->time_us < found->time_us)) found = difference;
  }
  if (!found) return std::nullopt;
  return found->words;
}

std::optional<Straggling> find_straggling(std::span<RankFlight const> ranks, std::int64_t now_us,
                                          std::int64_t since_us) {
  std::optional<Straggling> longest;
  for (auto const& [name, calls] : sort(ranks)) {
    std::uint64_t reached = std::numeric_limits<std::uint64_t>::max();  // by everybody
    for (auto const& [rank, mine] : calls)
      reached = std::min(reached, mine.empty() ? 0 : mine.rbegin()->first);
    Meeting const at = meeting(calls, reached + 1);
    if (at.there.empty() || at.missing.empty() || at.first_us < since_us) continue;
    std::chrono::microseconds const waited(now_us - at.first_us);
    if (longest && waited <= longest->waited) continue;
    longest = Straggling{
        text(name, ' ', reached + 1), waited,
        text(named(at.missing), at.missing.size() == 1 ? " is" : " are", " late: ", named(at.there),
             at.there.size() == 1 ? " has" : " have", " called number ", reached + 1, " of ", name, ", ",
             at.said.begin()->first == "nothing" ? at.said.rbegin()->first : at.said.begin()->first, ", ",
             std::chrono::duration_cast<std::chrono::seconds>(waited).count(), " s ago")};
  }
  return longest;
}

}  // namespace ddp::launcher
