#include "launcher/report/oom_kills.hpp"

#include <fstream>

#include "core/system/cgroup.hpp"
#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

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
  for (std::filesystem::path const& folder : cgroup_folders("memory", root)) {
    // A cgroup may count its memory in one above.
    for (char const* const name : {"memory.events", "memory.oom_control"}) {
      if (auto const count = count_in(folder / name)) return OomKills{(folder / name).string(), *count};
    }
  }
  return std::nullopt;
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
