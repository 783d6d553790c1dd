// A rank's flight recorder, written by the rank itself where no ddp-launch does.
#pragma once

#include "ddp/core/ids.hpp"

namespace ddp {

/// Writes this process's last collectives to rankR.flight.json in the folder that DDP_FLIGHT_DIR names.
/// Nothing without that variable, and under ddp-launch, which writes them however the rank ends. Logs what
/// goes wrong, never throws.
void write_flight_file(Rank rank) noexcept;

}  // namespace ddp
