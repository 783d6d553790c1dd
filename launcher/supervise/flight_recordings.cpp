#include "launcher/supervise/flight_recordings.hpp"

#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <map>

#include "core/system/own_file.hpp"
#include "core/system/sealed_memory.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/plan.hpp"
#include "observe/flight_json.hpp"

namespace ddp::launcher {

FlightRecordings::FlightRecordings(int ranks) {
  while (std::ssize(memory_) < ranks) {
    memory_.push_back(make_sealed_memory("ddp-flight", FlightRecorder::memory_bytes()));
  }
}

std::optional<std::uint64_t> FlightRecordings::steps(Rank rank) const {
  auto const flight = read(rank);
  if (!flight || !flight->progress) return std::nullopt;
  return flight->progress->steps;
}

void FlightRecordings::renew(Rank rank) {
  memory_[rank.index()] = make_sealed_memory("ddp-flight", FlightRecorder::memory_bytes());
}

std::string FlightRecordings::path(Rank rank) const {
  FileDescriptor const& file = memory_[rank.index()];
  return file ? text("/proc/", ::getpid(), "/fd/", file.get()) : std::string{};
}

// Copies the memory first, since a rank may change what it shares at any time.
std::optional<FlightRecorder::Log> FlightRecordings::read(Rank rank) const {
  FileDescriptor const& file = memory_[rank.index()];
  std::size_t const bytes = FlightRecorder::memory_bytes();
  std::vector<std::uint64_t> copy(bytes / sizeof(std::uint64_t) + 1);
  if (!file || ::pread(file.get(), copy.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    return std::nullopt;
  }
  return FlightRecorder::read(copy.data());
}

void FlightRecordings::link_into(std::string const& directory) {
  for (Rank const rank : all_ranks(static_cast<int>(memory_.size()))) {
    std::string const memory = path(rank);
    std::string const link = flight_link(directory, rank);
    if (!memory.empty() && symlink(memory.c_str(), link.c_str()) != 0) memory_[rank.index()].reset();
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
