#include "launcher/supervise/flight_recordings.hpp"

#include <unistd.h>

#include <map>

#include "core/system/own_file.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/plan.hpp"
#include "observe/flight_json.hpp"

namespace ddp::launcher {

void FlightRecordings::link_into(std::string const& directory) {
  for (Rank const rank : all_ranks(static_cast<int>(memory_.size()))) {
    std::string const memory = path(rank);
    std::string const link = flight_link(directory, rank);
    if (!memory.empty() && symlink(memory.c_str(), link.c_str()) != 0) memory_[rank.index()] = {};
  }
}

void FlightRecordings::add_to(JobOutcome& job, LogDirectory const& logs, Console& console) const {
  auto const all = read();
  std::map<std::string, std::vector<Rank>> by_problem;  // "": of those that have their files
  for (RankFlight const& flight : all) {
    if (!flight.log || flight.log->entries.empty()) continue;
    job.ranks[flight.rank.index()].last_collective = describe_last(*flight.log);
    if (!logs) continue;
    auto [file, problem] = logs.open(flight_file_name(flight.rank), false);
    if (file) problem = write_all(file, flight_json(flight.rank, flight.log));
    by_problem[problem].push_back(flight.rank);
  }
  for (auto const& [problem, ranks] : by_problem) {
    if (problem.empty()) {
      job.flight_files = text(logs.path(), "/rank*.flight.json");
      job.flight_ranks = ranks.size() == all.size() ? "all ranks" : list_ranks(ranks);
    } else {
      console.say(text("warning: cannot write ", logs.path(), "/",
                       ranks.size() == 1 ? flight_file_name(ranks.front())
                                         : text("rank*.flight.json of ", list_ranks(ranks)),
                       ": ", problem));
    }
  }
  job.difference = first_difference(all);
}

std::vector<RankFlight> FlightRecordings::read() const {
  std::vector<RankFlight> all;
  for (Rank const rank : all_ranks(static_cast<int>(memory_.size()))) all.push_back({rank, read(rank)});
  return all;
}

}  // namespace ddp::launcher
