// The cgroups around this process, and how much of the CPUs' time they leave to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace ddp {

/// The folders in which the kernel keeps a controller's files ("cpu", "memory") for this process's cgroup and
/// for those around it, outwards: of version 1, where the controller has a hierarchy of its own, then of
/// version 2. Not all need to be there: a container sees its own cgroup as the outermost one. `root`: where
/// /proc and /sys are.
[[nodiscard]] std::vector<std::filesystem::path> cgroup_folders(std::string_view controller,
                                                                std::filesystem::path const& root = "/");

/// A limit on time that a cgroup sets (cpu.max, with version 1 cpu.cfs_quota_us).
struct CpuQuota {
  std::uint64_t group = 0;  ///< the cgroup; equal for processes of one host that are in the same one
  double cpus = 0;          ///< how many CPUs' time all processes in it may use
  friend bool operator==(CpuQuota const&, CpuQuota const&) = default;
};

/// The quotas of this process's cgroup and of those around it. The smallest one limits the process.
[[nodiscard]] std::vector<CpuQuota> cpu_quotas(std::filesystem::path const& root = "/");

}  // namespace ddp
