// Which cores each rank gets (L11): those of its GPU's NUMA node, shared out among the ranks of that node.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ddp::launcher {

/// A hardware thread that this process may use.
struct Cpu {
  int number = 0;  ///< as sched_setaffinity() counts
  int core = 0;    ///< the lowest number of the threads of its core
  int node = 0;    ///< NUMA node; 0 where the kernel has none
  friend bool operator==(Cpu const&, Cpu const&) = default;
};

/// What a rank needs of the machine.
struct CoreDemand {
  bool is_gpu_rank = false;
  std::optional<int> node;  ///< of its GPU, where the kernel tells
};

/// The CPUs of `allowed` as /sys tells (`sys`: a stand-in, for tests). Where files are missing, every thread
/// is a core and there is one node.
[[nodiscard]] std::vector<Cpu> read_cpus(std::span<int const> allowed, std::string const& sys = "/sys");

/// The NUMA node of a PCI device ("0000:06:00.0"); nullopt where the kernel does not tell (virtual machines).
[[nodiscard]] std::optional<int> node_of_device(std::string const& pci_bus_id,
                                                std::string const& sys = "/sys");

/// The CPUs of each rank, ascending; empty: all that are allowed. The ranks of the GPUs of one node share its
/// whole cores evenly, ranks of neighbouring numbers get neighbouring cores; with more ranks than cores each
/// gets all of them. With several nodes, a rank is free if its GPU's node is unknown or has no allowed CPU.
/// CPU ranks are spread over the nodes; with one node they are free.
[[nodiscard]] std::vector<std::vector<int>> share_cores(std::span<Cpu const> cpus,
                                                        std::span<CoreDemand const> ranks);

/// The form in which sched_setaffinity() takes CPUs; empty for none.
[[nodiscard]] std::vector<unsigned long> cpu_mask(std::span<int const> cpus);
/// Keeps the calling thread, and what it starts, on these CPUs; an empty mask changes nothing. One system
/// call, so allowed between fork and exec. Ignores a failure: the thread then runs on any CPU.
void stay_on(std::span<unsigned long const> mask) noexcept;

/// "0-3,8": as the kernel writes lists of CPUs.
[[nodiscard]] std::string cpu_list(std::span<int const> cpus);
/// The reverse; nullopt for text of another form.
[[nodiscard]] std::optional<std::vector<int>> parse_cpu_list(std::string const& list);

}  // namespace ddp::launcher
