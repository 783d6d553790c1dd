// What the kernel says about processes that it killed for lack of memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace ddp::launcher {

/// How many processes of a cgroup the kernel's out-of-memory killer has ended since the cgroup was made.
struct OomKills {
  std::string file;  ///< where the count stands: memory.events, with cgroup v1 memory.oom_control
  std::uint64_t count = 0;
};

/// For the cgroup that counts the memory of this process and its children. `root`: where /proc and /sys are.
/// nullopt where the kernel does not tell.
[[nodiscard]] std::optional<OomKills> read_oom_kills(std::filesystem::path const& root = "/");

/// The count at a rank's failure, and the count some time before.
struct OomWatch {
  OomKills before;
  std::uint64_t after = 0;
  std::chrono::seconds within{};  ///< between the two, rounded up
  [[nodiscard]] bool rose() const noexcept { return after > before.count; }
};

/// Looks again and again, since a kill long before a failure says nothing about it. Nor is a failure compared
/// with the latest look: a process that is killed for lack of memory takes a while to end.
class OomLooks {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kBetween{30};

  explicit OomLooks(std::filesystem::path root = "/") : root_(std::move(root)) {}
  /// Looks, if the latest look is kBetween ago. Called often: first when the ranks start.
  void look(Clock::time_point now);
  /// Compares with a look at least kBetween ago, or the first one. nullopt where the kernel does not tell.
  [[nodiscard]] std::optional<OomWatch> at_a_failure(Clock::time_point now) const;

 private:
  struct Look {
    Clock::time_point when;
    OomKills kills;
  };
  std::filesystem::path root_;
  std::optional<Look> earlier_;
  std::optional<Look> latest_;
};

}  // namespace ddp::launcher
