// The CPUs that a thread may run on.
#pragma once

#include <sched.h>

#include <array>
#include <vector>

namespace ddp {

/// The most that Linux can be built for.
inline constexpr int kMostCpus = 8192;

/// The calling thread's, by the kernel's numbers (hardware threads), ascending. Empty if the kernel does not
/// tell.
[[nodiscard]] inline std::vector<int> allowed_cpu_numbers() {
  std::array<cpu_set_t, kMostCpus / CPU_SETSIZE> mask{};
  if (::sched_getaffinity(0, sizeof(mask), mask.data()) != 0) return {};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof(mask), mask.data())) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace ddp
