#include "launcher/report/oom_kills.hpp"

#include <fstream>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

/// Where /proc/self/cgroup says that memory is counted.
struct MemoryGroup {
  std::string path;  ///< "/user.slice/a"
  bool v1 = false;   ///< a hierarchy of its own
};

/// Lines are "number:controllers:path"; v2 has number 0 and names no controllers.
std::optional<MemoryGroup> memory_group(std::filesystem::path const& proc_cgroup) {
  Classic<std::ifstream> in(proc_cgroup);
  std::optional<MemoryGroup> group;
  for (std::string line; std::getline(in, line);) {
    std::size_t const first = line.find(':');
    std::size_t const second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string const controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (controllers.find(",memory,") != std::string::npos) return MemoryGroup{std::move(path), true};
    if (controllers == ",,") group = MemoryGroup{std::move(path), false};
  }
  return group;
}

std::optional<std::uint64_t> count_in(std::filesystem::path const& file) {
  Classic<std::ifstream> in(file);
  std::string key;
  for (std::uint64_t value = 0; in >> key >> value;) {
    if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<OomKills> read_oom_kills(std::filesystem::path const& root) {
  auto const group = memory_group(root / "proc/self/cgroup");
  if (!group) return std::nullopt;
  std::filesystem::path const mount = root / (group->v1 ? "sys/fs/cgroup/memory" : "sys/fs/cgroup");
  char const* const name = group->v1 ? "memory.oom_control" : "memory.events";
  // A cgroup may count its memory in one above, and a container may see its own as the mount's root.
  std::filesystem::path path = std::filesystem::path(group->path).relative_path().lexically_normal();
  if (path.begin() != path.end() && *path.begin() == "..") path.clear();
  for (;; path = path.parent_path()) {
    std::filesystem::path const file = mount / path / name;
    if (auto const count = count_in(file)) return OomKills{file.string(), *count};
    if (path.empty()) return std::nullopt;
  }
}

void OomLooks::look(Clock::time_point now) {
  if (latest_ && now - latest_->when < kBetween) return;
  auto kills = read_oom_kills(root_);
  if (!kills) return;
  earlier_ = std::move(latest_);
  latest_ = Look{now, std::move(*kills)};
}

std::optional<OomWatch> OomLooks::at_a_failure(Clock::time_point now) const {
  auto const& before = earlier_ && now - latest_->when < kBetween ? earlier_ : latest_;
  auto const kills = before ? read_oom_kills(root_) : std::nullopt;
  if (!kills) return std::nullopt;
  return OomWatch{before->kills, kills->count, std::chrono::ceil<std::chrono::seconds>(now - before->when)};
}

}  // namespace ddp::launcher
