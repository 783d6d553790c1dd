// What the kernel says of processes that it ended for want of memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ddp::launcher {

/// How many processes of a cgroup the kernel's out-of-memory killer has ended since the cgroup was made.
struct OomKills {
  std::string file;  ///< that says so: memory.events, with cgroup v1 memory.oom_control
  std::uint64_t count = 0;
};

/// Of the cgroup that this process counts its memory in, which its children share. `root`: where /proc and
/// /sys are. nullopt where the kernel does not tell.
[[nodiscard]] std::optional<OomKills> read_oom_kills(std::filesystem::path const& root = "/");

/// While a rank ran.
struct OomWatch {
  OomKills before;
  std::uint64_t after = 0;
  [[nodiscard]] bool killed() const noexcept { return after > before.count; }
};

}  // namespace ddp::launcher
