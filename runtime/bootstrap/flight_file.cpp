#include "bootstrap/flight_file.hpp"

#include <cstdlib>

#include "core/replace_file.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "observe/flight_json.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {

void write_flight_file(Rank rank) noexcept {
  char const* const folder = std::getenv("DDP_FLIGHT_DIR");
  if (folder == nullptr || std::getenv("DDP_FLIGHT") != nullptr) return;
  try {
    std::string const path = text(folder, "/", flight_file_name(rank));
    replace_file(path, flight_json(rank, flight_recorder().log()));
    log(LogLevel::info, text("the last collectives of rank ", rank, ": ", path));
  } catch (std::exception const& failure) {
    log(LogLevel::warning, text("DDP_FLIGHT_DIR: ", failure.what()));
  }
}

}  // namespace ddp
