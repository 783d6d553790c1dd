#include "observe/flight_json.hpp"

#include <cstring>
#include <nlohmann/json.hpp>

#include "ddp/core/text.hpp"

namespace ddp {

std::string flight_json(Rank rank, std::optional<FlightRecorder::Log> const& log) {
  nlohmann::ordered_json report{{"rank", rank.value()}};
  report["recorded"] = log ? log->recorded : 0;
  auto& operations = report["operations"] = nlohmann::ordered_json::array();
  if (log) {
    for (FlightRecorder::Entry const& entry : log->entries) {
      auto const chars = [](auto const& text) {
        return std::string(text.data(), strnlen(text.data(), text.size()));
      };
      operations.push_back(nlohmann::ordered_json{{"communicator", log->communicators[entry.communicator]},
                                                  {"number", entry.sequence},
                                                  {"operation", chars(entry.what)},
                                                  {"reduction", chars(entry.reduction)},
                                                  {"dtype", std::string(to_string(entry.dtype))},
                                                  {"count", entry.count},
                                                  {"peer", entry.peer},
                                                  {"time_us", entry.time_us}});
    }
  }
  return report.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

std::string flight_file_name(Rank rank) { return text("rank", rank, ".flight.json"); }

}  // namespace ddp
