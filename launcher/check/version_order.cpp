#include "launcher/check/version_order.hpp"

#include <algorithm>
#include <charconv>

namespace ddp::launcher {

std::vector<int> version_parts(std::string const& version) {
  std::vector<int> parts;
  char const* at = version.data();
  char const* const end = at + version.size();
  for (;;) {
    int number = 0;
    auto const [after, problem] = std::from_chars(at, end, number);
    if (problem != std::errc{} || number < 0) return parts;
    parts.push_back(number);
    if (after == end || *after != '.') return parts;
    at = after + 1;
  }
}

bool is_older(std::string const& one, std::string const& other) {
  auto mine = version_parts(one);
  auto theirs = version_parts(other);
  std::size_t const common = std::min(mine.size(), theirs.size());
  mine.resize(common);
  theirs.resize(common);
  return mine < theirs;
}

}  // namespace ddp::launcher
