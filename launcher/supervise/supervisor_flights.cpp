// The supervisor's look into the ranks' flight recorders: at those that others wait for, and after a failure.
#include <chrono>

#include "ddp/core/text.hpp"
#include "launcher/supervise/supervisor.hpp"
#include "observe/flight_json.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

// A wait of usual length, for a checkpoint or an evaluation on one rank, deserves no word; nor does the same
// thing each minute.
constexpr auto kLongWait = 2s;
constexpr auto kBetweenFlightLooks = 1s;
constexpr auto kBetweenWarnings = 60s;

}  // namespace

std::vector<RankFlight> Supervisor::flights() const {
  std::vector<RankFlight> all;
  for (Rank const rank : all_ranks(static_cast<int>(flights_.size())))
    all.push_back({rank, flights_[rank.index()].read()});
  return all;
}

bool Supervisor::looks_for_stragglers() const {
  return flights_.size() > 1 && !options_.quiet && !failure_seen_ && job_.forwarded_signal == 0 &&
         still_running() == ranks_.size();
}

void Supervisor::warn_of_stragglers() {
  auto const now = Clock::now();
  if (now < next_look_ || !looks_for_stragglers()) return;
  next_look_ = now + kBetweenFlightLooks;
  auto const since_1970 = std::chrono::system_clock::now().time_since_epoch();
  auto const found =
      find_straggling(flights(), std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count());
  if (!found || found->waited < kLongWait || found->key == straggling_) return;
  straggling_ = found->key;
  next_look_ = now + kBetweenWarnings;
  console_.say(text("warning: ", found->words));
}

/// Where the report speaks of `rank`; null where it does not.
RankOutcome* Supervisor::outcome_of(Rank rank) {
  if (!plan_.mpi_ranks) return &job_.ranks[rank.index()];
  RankOutcome& mpirun = job_.ranks.front();
  return mpirun.culprit == rank ? &mpirun : nullptr;
}

/// After a failure: what the ranks called last goes into the report and into files.
void Supervisor::read_flights() {
  auto const all = flights();
  bool writes_files = static_cast<bool>(files_.logs);
  for (RankFlight const& flight : all) {
    if (!flight.log) continue;
    RankOutcome* const outcome = outcome_of(flight.rank);
    if (outcome != nullptr) outcome->last_collective = describe_last(*flight.log);
    if (!writes_files) continue;
    LogFile file(console_, files_.logs, flight_file_name(flight.rank), false);
    file.write(console_, flight_json(flight.rank, flight.log));
    if (file) {
      job_.flight_files = text(files_.logs.path(), "/rank*.flight.json");
    } else {
      writes_files = false;  // said once, not for each rank
    }
  }
  job_.difference = first_difference(all);
}

}  // namespace ddp::launcher
