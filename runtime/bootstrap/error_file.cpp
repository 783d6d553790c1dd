#include "bootstrap/error_file.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/replace_file.hpp"
#include "ddp/core/log.hpp"

namespace ddp {
namespace {

std::string utc_now() {
  using std::chrono::system_clock;
  auto const now = system_clock::now();
  std::time_t const whole = system_clock::to_time_t(now);
  auto const milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char date[32];
  std::size_t const length = std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  char fraction[8];
  std::snprintf(fraction, sizeof fraction, ".%03dZ", static_cast<int>(milliseconds));
  return std::string(date, length) + fraction;
}

}  // namespace

void write_error_file(std::string const& path, Rank rank, ErrorCode code, std::string_view message) noexcept {
  if (path.empty()) return;
  try {
    nlohmann::json const error{{"rank", rank.value()},
                               {"code", std::string(to_string(code))},
                               {"message", std::string(message)},
                               {"pid", ::getpid()},
                               {"time", utc_now()}};
    // A message need not be UTF-8: what is not becomes U+FFFD.
    replace_file(path, error.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (std::exception const& failure) {
    log(LogLevel::warning, failure.what());
  }
}

}  // namespace ddp
