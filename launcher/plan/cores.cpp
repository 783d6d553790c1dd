#include "launcher/plan/cores.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "core/system/allowed_cpus.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/first_line.hpp"

namespace ddp::launcher {
namespace {

std::map<int, int> nodes_of_cpus(std::string const& sys) {
  std::map<int, int> nodes;
  std::error_code none;
  for (auto const& entry : std::filesystem::directory_iterator(sys + "/devices/system/node", none)) {
    std::string const name = entry.path().filename();
    if (!name.starts_with("node")) continue;
    auto const node = parse_cpu_list(name.substr(4));
    auto const cpus = parse_cpu_list(first_line_of_file(entry.path().string() + "/cpulist"));
    if (!node || node->size() != 1 || !cpus) continue;
    for (int const cpu : *cpus) nodes[cpu] = node->front();
  }
  return nodes;
}

/// Part `i` of `parts` of the cores of `cpus`, which are sorted by core, as numbers of CPUs.
std::vector<int> part(std::vector<Cpu> const& cpus, std::size_t i, std::size_t parts) {
  std::vector<int> cores;
  for (Cpu const& cpu : cpus) {
    if (cores.empty() || cores.back() != cpu.core) cores.push_back(cpu.core);
  }
  bool const divides = parts <= cores.size();
  std::size_t const begin = divides ? i * cores.size() / parts : 0;
  std::size_t const end = divides ? (i + 1) * cores.size() / parts : cores.size();
  std::set<int> const mine(cores.begin() + static_cast<std::ptrdiff_t>(begin),
                           cores.begin() + static_cast<std::ptrdiff_t>(end));
  std::vector<int> numbers;
  for (Cpu const& cpu : cpus) {
    if (mine.contains(cpu.core)) numbers.push_back(cpu.number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string const& list) {
  std::vector<int> cpus;
  char const* at = list.data();
  char const* const end = at + list.size();
  auto const number = [&](int& value) {
    auto const [after, problem] = std::from_chars(at, end, value);
    at = after;
    return problem == std::errc() && value >= 0 && value < kMostCpus;
  };
  while (at != end) {
    int first = 0;
    if (!number(first)) return std::nullopt;
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(last) || last < first) return std::nullopt;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (at != end && (*at++ != ',' || at == end)) return std::nullopt;
  }
  return cpus;
}

std::vector<unsigned long> cpu_mask(std::span<int const> cpus) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (int const cpu : cpus) {
    std::size_t const bit = static_cast<std::size_t>(cpu);
    if (mask.size() <= bit / kBits) mask.resize(bit / kBits + 1);
    mask[bit / kBits] |= 1UL << bit % kBits;
  }
  return mask;
}

void stay_on(std::span<unsigned long const> mask) noexcept {
  if (!mask.empty()) syscall(SYS_sched_setaffinity, 0, mask.size_bytes(), mask.data());
}

std::string cpu_list(std::span<int const> cpus) {
  std::string list;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    list += text(list.empty() ? "" : ",", cpus[i]);
    if (last > i) list += text("-", cpus[last]);
    i = last + 1;
  }
  return list;
}

std::vector<Cpu> read_cpus(std::span<int const> allowed, std::string const& sys) {
  auto const nodes = nodes_of_cpus(sys);
  std::vector<Cpu> cpus;
  for (int const number : allowed) {
    auto const siblings = parse_cpu_list(
        first_line_of_file(text(sys, "/devices/system/cpu/cpu", number, "/topology/thread_siblings_list")));
    auto const node = nodes.find(number);
    cpus.push_back({number, siblings && !siblings->empty() ? siblings->front() : number,
                    node == nodes.end() ? 0 : node->second});
  }
  return cpus;
}

std::optional<int> node_of_device(std::string const& pci_bus_id, std::string const& sys) {
  if (pci_bus_id.empty()) return std::nullopt;
  auto const node =
      parse_cpu_list(first_line_of_file(text(sys, "/bus/pci/devices/", pci_bus_id, "/numa_node")));
  if (!node || node->size() != 1) return std::nullopt;  // -1: the kernel does not know
  return node->front();
}

std::vector<std::vector<int>> share_cores(std::span<Cpu const> cpus, std::span<CoreDemand const> ranks) {
  std::map<int, std::vector<Cpu>> nodes;
  for (Cpu const& cpu : cpus) nodes[cpu.node].push_back(cpu);
  for (auto& [node, members] : nodes) {
    std::ranges::sort(members, {}, [](Cpu const& cpu) { return std::pair(cpu.core, cpu.number); });
  }
  std::vector<std::vector<int>> shares(ranks.size());
  if (nodes.empty()) return shares;

  std::map<int, std::vector<std::size_t>> gpu_ranks;  // by node
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].is_gpu_rank) {
      if (nodes.size() == 1) continue;
      auto const node =
          std::next(nodes.begin(), static_cast<std::ptrdiff_t>(r * nodes.size() / ranks.size()));
      shares[r] = part(node->second, 0, 1);
    } else if (nodes.size() == 1) {
      gpu_ranks[nodes.begin()->first].push_back(r);
    } else if (ranks[r].node && nodes.contains(*ranks[r].node)) {
      gpu_ranks[*ranks[r].node].push_back(r);
    }
  }
  for (auto const& [node, members] : gpu_ranks) {
    for (std::size_t i = 0; i < members.size(); ++i)
      shares[members[i]] = part(nodes[node], i, members.size());
  }
  return shares;
}

}  // namespace ddp::launcher
