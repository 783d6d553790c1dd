// The ranks' flight recorders: where they lie, and what they tell after a failure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/log_directory.hpp"
#include "launcher/report/flight_log.hpp"
#include "launcher/report/report.hpp"

namespace ddp::launcher {

/// Memory for the FlightRecorder of each rank, without a name in any folder; it outlives the rank. Under an
/// mpirun ranks of other hosts do not find it.
class FlightRecordings {
 public:
  /// For a rank that no memory can be had for, nothing is recorded.
  explicit FlightRecordings(int ranks);

  /// What each rank has written down.
  [[nodiscard]] std::vector<RankFlight> read() const;
  /// nullopt if it has recorded nothing.
  [[nodiscard]] std::optional<FlightRecorder::Log> read(Rank rank) const;
  /// How many steps the rank has ended; nullopt where that is not known.
  [[nodiscard]] std::optional<std::uint64_t> steps(Rank rank) const;
  /// Empty memory for a new process of that rank.
  void renew(Rank rank);
  /// For DDP_FLIGHT; empty if there is none. Valid while this process lives.
  [[nodiscard]] std::string path(Rank rank) const;
  /// Where the ranks behind an mpirun find them: see flight_link().
  void link_into(std::string const& directory);

  /// After a failure: puts what the ranks called last into the report, and into files if there are `logs`.
  void add_to(JobOutcome& job, LogDirectory const& logs, Console& console) const;

 private:
  std::vector<FileDescriptor> memory_;
};

}  // namespace ddp::launcher
