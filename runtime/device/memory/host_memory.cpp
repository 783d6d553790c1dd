#include "device/memory/host_memory.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// The number in a file of a control group; nullopt for "max", and where there is none.
std::optional<std::size_t> number_in(char const* path) {
  std::size_t number = 0;
  if (Classic<std::ifstream> in(path); in >> number) return number;
  return std::nullopt;
}

}  // namespace

MemoryInfo host_memory() {
  MemoryInfo memory{Bytes{SIZE_MAX}, Bytes{SIZE_MAX}};
  Classic<std::ifstream> in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    Classic<std::istringstream> words(line);
    std::string name;
    std::size_t kibibytes = 0;
    if (!(words >> name >> kibibytes)) continue;
    if (name == "MemAvailable:") memory.free = Bytes{kibibytes << 10};
    if (name == "MemTotal:") memory.total = Bytes{kibibytes << 10};
  }
  auto const limit = number_in("/sys/fs/cgroup/memory.max");
  auto const used = number_in("/sys/fs/cgroup/memory.current");
  if (limit) memory.total = Bytes{std::min(memory.total.value, *limit)};
  if (limit && used) {
    memory.free = Bytes{std::min(memory.free.value, *limit - std::min(*limit, *used))};
  }
  return memory;
}

}  // namespace ddp
