// Which ranks of a host have a core of their own, so that they may spin while they wait.
#pragma once

#include <span>
#include <vector>

#include "core/system/cgroup.hpp"

namespace ddp {

/// The CPUs on which a rank may run, and its share of their time.
struct CoreShare {
  /// CPUs as the kernel counts them (hardware threads), ascending; none: not known.
  std::vector<int> cpus;
  std::vector<CpuQuota> quotas;  ///< of the rank's cgroup and of those around it
  friend bool operator==(CoreShare const&, CoreShare const&) = default;
};

/// The calling thread's.
[[nodiscard]] CoreShare core_share();

/// For each rank of one host whether it has a CPU for itself, however ranks are placed on what they may use:
/// false for all ranks that compete for fewer CPUs than they are, or for less time. The two threads of a core
/// count as two: a rank that spins leaves the core to the other.
[[nodiscard]] std::vector<bool> have_own_cores(std::span<CoreShare const> ranks);

}  // namespace ddp
