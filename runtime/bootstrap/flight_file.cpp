#include "bootstrap/flight_file.hpp"

#include <cstdlib>

#include "core/system/absolute_path.hpp"
#include "core/system/replace_file.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "observe/flight_json.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {

// Never destroyed: a World that is a global object may fail late.
std::string const& flight_folder() {
  static auto const* const folder = new std::string([] {
    char const* const given = std::getenv("DDP_FLIGHT_DIR");
    return given == nullptr || std::getenv("DDP_FLIGHT") != nullptr ? "" : absolute_path(given);
  }());
  return *folder;
}

void write_flight_file(Rank rank) noexcept {
  try {
    if (flight_folder().empty()) return;
    std::string const path = text(flight_folder(), "/", flight_file_name(rank));
    replace_file(path, flight_json(rank, flight_recorder().log()));
    log(LogLevel::info, text("the last collectives of rank ", rank, ": ", path));
  } catch (std::exception const& failure) {
    log(LogLevel::warning, text("DDP_FLIGHT_DIR: ", failure.what()));
  }
}

}  // namespace ddp
