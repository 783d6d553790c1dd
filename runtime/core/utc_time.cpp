#include "core/utc_time.hpp"

#include <array>
#include <cstdio>
#include <ctime>

namespace ddp {

std::string utc_text(std::chrono::system_clock::time_point time) {
  auto const whole = std::chrono::floor<std::chrono::seconds>(time);
  auto const milliseconds = std::chrono::floor<std::chrono::milliseconds>(time - whole).count();
  std::time_t const seconds = std::chrono::system_clock::to_time_t(whole);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> date{};
  std::size_t const length = std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 8> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%03dZ", static_cast<int>(milliseconds));
  return std::string(date.data(), length) + fraction.data();
}

}  // namespace ddp
