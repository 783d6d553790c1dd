#include "launcher/supervise/flight_recordings.hpp"

#include <unistd.h>

#include <algorithm>

#include "ddp/core/text.hpp"
#include "launcher/output/log_file.hpp"
#include "launcher/plan/plan.hpp"
#include "observe/flight_json.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

// Shorter waits are usual: for a checkpoint or an evaluation on one rank.
constexpr auto kLongWait = 2s;
constexpr auto kBetweenFlightLooks = 1s;
constexpr auto kBetweenWarnings = 60s;

/// Ranks did not wait while they were stopped, though the times that they recorded look like it.
constexpr auto kUntilRanksAreBack = 2s;

/// The outcome in the report that is about `rank`; null if there is none.
RankOutcome* outcome_of(Rank rank, JobOutcome& job, bool under_mpirun) {
  if (!under_mpirun) return &job.ranks[rank.index()];
  RankOutcome& mpirun = job.ranks.front();
  return mpirun.culprit == rank ? &mpirun : nullptr;
}

}  // namespace

void FlightRecordings::link_into(std::string const& directory) {
  for (Rank const rank : all_ranks(static_cast<int>(memory_.size()))) {
    std::string const memory = path(rank);
    std::string const link = flight_link(directory, rank);
    if (!memory.empty() && symlink(memory.c_str(), link.c_str()) != 0) memory_[rank.index()] = {};
  }
}

std::optional<FlightRecordings::Clock::time_point> FlightRecordings::next_look() const {
  if (memory_.size() < 2) return std::nullopt;
  return next_look_;
}

void FlightRecordings::warn_of_stragglers(Console& console, Clock::time_point now) {
  if (memory_.size() < 2 || now < next_look_) return;
  next_look_ = now + kBetweenFlightLooks;
  auto const since_1970 = std::chrono::system_clock::now().time_since_epoch();
  auto const found =
      find_straggling(read(), std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count());
  if (!found || found->waited < kLongWait || found->key == straggling_) return;
  straggling_ = found->key;
  next_look_ = now + kBetweenWarnings;
  console.say(text("warning: ", found->words));
}

void FlightRecordings::leave_out(Clock::duration stopped, Clock::time_point now) {
  next_look_ = std::max(next_look_ + stopped, now + kUntilRanksAreBack);
}

void FlightRecordings::add_to(JobOutcome& job, bool under_mpirun, LogDirectory const& logs,
                              Console& console) const {
  auto const all = read();
  bool writes_files = static_cast<bool>(logs);
  for (RankFlight const& flight : all) {
    if (!flight.log) continue;
    RankOutcome* const outcome = outcome_of(flight.rank, job, under_mpirun);
    if (outcome != nullptr) outcome->last_collective = describe_last(*flight.log);
    if (!writes_files) continue;
    LogFile file(console, logs, flight_file_name(flight.rank), false);
    file.write(console, flight_json(flight.rank, flight.log));
    if (file) {
      job.flight_files = text(logs.path(), "/rank*.flight.json");
    } else {
      writes_files = false;  // reported once, not for each rank
    }
  }
  job.difference = first_difference(all);
}

std::vector<RankFlight> FlightRecordings::read() const {
  std::vector<RankFlight> all;
  for (Rank const rank : all_ranks(static_cast<int>(memory_.size())))
    all.push_back({rank, memory_[rank.index()].read()});
  return all;
}

}  // namespace ddp::launcher
