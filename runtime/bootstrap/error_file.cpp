#include "bootstrap/error_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/file_descriptor.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

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

void write_whole(std::string const& path, std::string_view content) {
  FileDescriptor const file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) throw_errno(text("opening the error file ", path), errno);
  while (!content.empty()) {
    ssize_t const written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(text("writing the error file ", path), errno);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void write_error_file(std::string const& path, Rank rank, ErrorCode code, std::string_view message) noexcept {
  if (path.empty()) return;
  try {
    static std::atomic<unsigned> number{0};  // two threads may report at once
    nlohmann::json const error{{"rank", rank.value()},
                               {"code", std::string(to_string(code))},
                               {"message", std::string(message)},
                               {"pid", ::getpid()},
                               {"time", utc_now()}};
    std::string const temporary = text(path, ".", ::getpid(), ".", number++, ".tmp");
    // A message need not be UTF-8: what is not becomes U+FFFD.
    write_whole(temporary, error.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      int const cause = errno;
      ::unlink(temporary.c_str());
      throw_errno(text("renaming the error file to ", path), cause);
    }
  } catch (std::exception const& failure) {
    log(LogLevel::warning, failure.what());
  }
}

}  // namespace ddp
