#include "bootstrap/failure_json.hpp"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/system/replace_file.hpp"
#include "core/utc_time.hpp"
#include "ddp/core/log.hpp"

namespace ddp {
namespace {

/// The value from 0 to `last` that to_string() calls `name`.
template <class Enum>
std::optional<Enum> named(std::string_view name, Enum last) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (to_string(static_cast<Enum>(i)) == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string failure_json(Failure const& failure) {
  nlohmann::ordered_json json{{"code", to_string(failure.code)},
                              {"message", to_string(failure)},
                              {"manner", to_string(failure.manner)}};
  for (Rank const rank : failure.ranks) json["ranks"].push_back(rank.value());
  if (!failure.host.empty()) json["host"] = failure.host;
  if (failure.status != 0) json["status"] = failure.status;
  if (!failure.operation.empty()) json["operation"] = failure.operation;
  if (failure.by) json["by"] = failure.by->value();
  if (failure.waited.count() != 0) json["waited_ms"] = failure.waited.count();
  if (!failure.detail.empty()) json["detail"] = failure.detail;
  if (failure.ended_by) json["ended_by"] = failure.ended_by->value();
  // Text need not be UTF-8: invalid bytes become U+FFFD.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<Failure> read_failure_json(std::string const& words) try {
  auto const json = nlohmann::json::parse(words);
  Failure failure;
  auto const manner = named(json.value("manner", ""), Failure::Manner::differs);
  failure.code = named(json.value("code", ""), ErrorCode::device).value_or(failure.code);
  failure.manner = manner.value_or(failure.manner);
  for (int const rank : json.value("ranks", std::vector<int>())) failure.ranks.emplace_back(rank);
  failure.host = json.value("host", "");
  failure.status = json.value("status", 0);
  failure.operation = json.value("operation", "");
  if (json.contains("by")) failure.by = Rank{json["by"].get<int>()};
  failure.waited = std::chrono::milliseconds(json.value("waited_ms", std::int64_t{0}));
  failure.detail = json.value(manner ? "detail" : "message", "");
  if (json.contains("ended_by")) failure.ended_by = Rank{json["ended_by"].get<int>()};
  return failure;
} catch (nlohmann::json::exception const&) {
  return std::nullopt;
}

void write_error_file(std::string const& path, Rank rank, Failure const& failure) noexcept {
  if (path.empty()) return;
  try {
    nlohmann::ordered_json error{{"rank", rank.value()}};
    error.update(nlohmann::ordered_json::parse(failure_json(failure)));
    error["pid"] = ::getpid();
    error["time"] = utc_text(std::chrono::system_clock::now());
    replace_file(path, error.dump(2) + "\n");
  } catch (std::exception const& problem) {
    log(LogLevel::warning, problem.what());
  }
}

}  // namespace ddp
