#include "bootstrap/error_file.hpp"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/system/replace_file.hpp"
#include "core/utc_time.hpp"
#include "ddp/core/log.hpp"

namespace ddp {

void write_error_file(std::string const& path, Rank rank, ErrorCode code, std::string_view message) noexcept {
  if (path.empty()) return;
  try {
    nlohmann::json const error{{"rank", rank.value()},
                               {"code", std::string(to_string(code))},
                               {"message", std::string(message)},
                               {"pid", ::getpid()},
                               {"time", utc_text(std::chrono::system_clock::now())}};
    // A message need not be UTF-8: what is not becomes U+FFFD.
    replace_file(path, error.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (std::exception const& failure) {
    log(LogLevel::warning, failure.what());
  }
}

}  // namespace ddp
