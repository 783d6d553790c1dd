// The ranks' flight recorders: where they lie, and what they tell after a failure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/output/console.hpp"
#include "launcher/output/log_directory.hpp"
#include "launcher/report/flight_log.hpp"
#include "launcher/report/report.hpp"

namespace ddp::launcher {

/// By rank, including this host's ranks under an mpirun; ranks of other hosts do not find the memory.
class FlightRecordings {
 public:
  explicit FlightRecordings(int ranks) : memory_(static_cast<std::size_t>(ranks)) {}

  /// What each rank has written down.
  [[nodiscard]] std::vector<RankFlight> read() const;
  [[nodiscard]] std::optional<FlightRecorder::Log> read(Rank rank) const {
    return memory_[rank.index()].read();
  }
  /// For DDP_FLIGHT; empty if there is none.
  [[nodiscard]] std::string path(Rank rank) const { return memory_[rank.index()].path(); }
  /// Where the ranks behind an mpirun find them: see flight_link().
  void link_into(std::string const& directory);

  /// After a failure: puts what the ranks called last into the report, and into files if there are `logs`.
  void add_to(JobOutcome& job, LogDirectory const& logs, Console& console) const;

 private:
  std::vector<FlightMemory> memory_;
};

}  // namespace ddp::launcher
