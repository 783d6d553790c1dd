// What a trace file holds.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/launcher/shell.hpp"

namespace ddp::testing {

[[nodiscard]] inline nlohmann::json read_trace(std::filesystem::path const& file) {
  return nlohmann::json::parse(read_file(file));
}

/// Its spans ("complete events"), in the file's order.
[[nodiscard]] inline std::vector<nlohmann::json> spans_of(std::filesystem::path const& file) {
  std::vector<nlohmann::json> spans;
  nlohmann::json const trace = read_trace(file);
  for (nlohmann::json const& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") spans.push_back(event);
  }
  return spans;
}

[[nodiscard]] inline std::vector<std::string> names_of(std::filesystem::path const& file) {
  std::vector<std::string> names;
  for (nlohmann::json const& span : spans_of(file)) names.push_back(span.at("name"));
  return names;
}

/// What the timeline calls a process or a thread of it: `what` is "process_name" or "thread_name". "" for
/// nothing.
[[nodiscard]] inline std::string name_in(nlohmann::json const& trace, char const* what, int process,
                                         int thread) {
  for (nlohmann::json const& event : trace.at("traceEvents")) {
    if (event.at("name") == what && event.at("pid") == process && event.at("tid") == thread) {
      return event.at("args").at("name");
    }
  }
  return "";
}

}  // namespace ddp::testing
