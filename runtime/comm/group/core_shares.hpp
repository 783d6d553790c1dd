// Which ranks of a host have a core of their own, so that they may spin while they wait.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ddp {

/// What a rank may run on.
struct CoreShare {
  /// A limit on time that a cgroup of version 2 sets (cpu.max).
  struct Quota {
    std::uint64_t group = 0;  ///< the cgroup; equal for ranks of one host that are in the same one
    double cpus = 0;          ///< how many CPUs' time all processes in it may use
    friend bool operator==(Quota const&, Quota const&) = default;
  };
  /// CPUs as the kernel counts them (hardware threads), ascending; none: not known.
  std::vector<int> cpus;
  std::vector<Quota> quotas;  ///< of the rank's cgroup and of those around it
  friend bool operator==(CoreShare const&, CoreShare const&) = default;
};

/// The calling thread's.
[[nodiscard]] CoreShare core_share();

/// Quotas of the cgroup that `membership`, the text of a /proc/PID/cgroup, names, and of those around it;
/// `root` is where cgroups are mounted. A missing file means no limit.
[[nodiscard]] std::vector<CoreShare::Quota> read_quotas(std::string const& membership,
                                                        std::string const& root);

/// For each rank of one host whether it has a CPU for itself, however ranks are placed on what they may use:
/// false for all ranks that compete for fewer CPUs than they are, or for less time. The two threads of a core
/// count as two: a rank that spins leaves the core to the other.
[[nodiscard]] std::vector<bool> have_own_cores(std::span<CoreShare const> ranks);

}  // namespace ddp
