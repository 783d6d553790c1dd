#include "bootstrap/error_file.hpp"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "bootstrap/failure_json.hpp"
#include "core/system/replace_file.hpp"
#include "core/utc_time.hpp"
#include "ddp/core/log.hpp"

namespace ddp {

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
