// What this machine has, as far as starting ranks needs to know.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/device_list.hpp"

namespace ddp::launcher {

struct Machine {
  std::string host;
  int allowed_cores = 1;   ///< hardware threads that this process may use: affinity and the cgroup's quota
  int physical_cores = 1;  ///< of those, counted up to 2: what the default number of ranks needs
  std::vector<Gpu> gpus;   ///< empty in a launcher that starts CPU ranks only
  bool has_gpu_driver = false;  ///< GPUs may be there that this launcher cannot list
  std::optional<std::string> cuda_visible_devices;
};

/// Reads /proc and /sys; a file that is not there is a normal answer.
[[nodiscard]] Machine detect_machine();

/// CPUs that a quota in the format of cgroup v2's cpu.max ("200000 100000", "max 100000") allows, rounded up;
/// nullopt for no quota or text of another form.
[[nodiscard]] std::optional<int> cpu_quota(std::string const& cpu_max);

}  // namespace ddp::launcher
