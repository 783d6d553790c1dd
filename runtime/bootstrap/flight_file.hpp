// The file of a rank's last collectives, where DDP_FLIGHT_DIR names a folder (F8).
#pragma once

#include <string>

#include "ddp/core/ids.hpp"

namespace ddp {

/// What DDP_FLIGHT_DIR names, "" for nothing; of a relative path, in the working directory of the first call.
/// "" under ddp-launch, which sets DDP_FLIGHT and writes the file itself, however a rank ends.
[[nodiscard]] std::string const& flight_folder();

/// Writes this process's last collectives to rankR.flight.json there.
void write_flight_file(Rank rank) noexcept;

}  // namespace ddp
