// The files that a job writes, for as long as it runs.
#pragma once

#include "launcher/output/event_log.hpp"
#include "launcher/output/log_directory.hpp"

namespace ddp::launcher {

struct JobFiles {
  LogDirectory logs;  ///< none: no files of the ranks
  EventLog events;
};

}  // namespace ddp::launcher
