// A rank's flight recorder as a file, for people and programs.
#pragma once

#include <optional>
#include <string>

#include "ddp/core/ids.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {

/// The whole log; no operations where there is none.
[[nodiscard]] std::string flight_json(Rank rank, std::optional<FlightRecorder::Log> const& log);

/// "rank3.flight.json".
[[nodiscard]] std::string flight_file_name(Rank rank);

}  // namespace ddp
