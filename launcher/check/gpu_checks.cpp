// --check: GPUs, the driver, and how GPUs reach each other.
#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>

#include "ddp/core/text.hpp"
#include "ddp/device/device_map.hpp"
#include "launcher/check/machine_check.hpp"

namespace ddp::launcher {
namespace {

/// A GPU with more than this part of its memory taken is in use, even if the driver shows no process (as in
/// containers). The driver itself takes less than a hundredth of an idle GPU.
constexpr std::size_t kBusyPart = 10;

constexpr char const* kWaitOrChoose = "wait, or choose others with --gpus";

PeerAccess access_of(Machine const& machine, PhysicalIndex from, PhysicalIndex to) {
  if (from == to) return PeerAccess::itself;
  if (from.index() >= machine.peers.size() || to.index() >= machine.peers[from.index()].size()) {
    return PeerAccess::unknown;
  }
  return machine.peers[from.index()][to.index()];
}

char const* cell(PeerAccess access) {
  constexpr std::array kInOrder{"?", "-", "no", "PCIe", "NVLink"};
  return kInOrder.at(static_cast<std::size_t>(access));
}

std::vector<std::string> matrix(std::vector<PhysicalIndex> const& cards, Machine const& machine) {
  std::vector<std::string> lines;
  auto const line = [&](std::string const& head, auto const& cell_of) {
    Classic<std::ostringstream> out;
    out << std::left << std::setw(8) << head;
    for (PhysicalIndex const card : cards) out << std::setw(8) << cell_of(card);
    std::string words = out.str();
    words.erase(words.find_last_not_of(' ') + 1);
    lines.push_back(words);
  };
  auto const name = [](PhysicalIndex card) { return text("GPU ", card); };
  line("", name);
  for (PhysicalIndex const from : cards) {
    line(name(from), [&](PhysicalIndex to) { return cell(access_of(machine, from, to)); });
  }
  return lines;
}

}  // namespace

std::vector<PhysicalIndex> cards_of(CheckedJob const& job, Machine const& machine) {
  std::vector<PhysicalIndex> cards;
  for (GpuId const& gpu : job.gpus) {
    PhysicalIndex const card = find_gpu(machine.gpus, gpu).value().gpu->index;
    if (std::ranges::find(cards, card) == cards.end()) cards.push_back(card);
  }
  return cards;
}

Check check_gpu(FoundGpu const& found) {
  PhysicalGpu const& gpu = *found.gpu;
  auto const& memory = found.memory();
  Check check{.name = text("GPU ", gpu.index)};
  check.found = text(gpu.name, ", ", found.uuid(), ", ", gpu.pci_bus_id, ", sm_", gpu.compute_major,
                     gpu.compute_minor, ", ", memory_text(memory), users_of(gpu));
  if (memory && memory->free < kLeastFreeMemory) {
    check.worth_retry = true;
    return check.judge(Verdict::failed,
                       text(to_string(kLeastFreeMemory), " free for a rank's context and NCCL's buffers"),
                       kWaitOrChoose);
  }
  // An instance has memory of its own, but its GPU's processes may run on other instances.
  bool const has_users = found.instance == nullptr && !gpu.compute_processes.empty();
  bool const taken = memory && memory->total - memory->free > memory->total / kBusyPart;
  if (has_users || taken) {
    check.judge(Verdict::warning, "a GPU that nobody else uses", kWaitOrChoose);
  }
  return check;
}

/// A driver runs programs of every toolkit whose major version is not newer than its own (CUDA Compatibility
/// guide, minor version compatibility).
Check check_cuda(Machine const& machine, BuiltWith const& built_with) {
  Check check{.name = "CUDA"};
  std::string const built =
      built_with.cuda.empty() ? "this build of ddp has no CUDA" : "built with " + built_with.cuda;
  if (machine.cuda_version.empty()) {
    check.found = text("the driver's version is unknown; ", built);
    return check.judge(
        Verdict::warning, "the driver's libcuda.so.1",
        "in a container: start it with GPUs (docker --gpus all, the NVIDIA container toolkit)");
  }
  check.found = text("driver ", machine.cuda_version, "; ", built);
  auto const driver = version_parts(machine.cuda_version);
  auto const toolkit = version_parts(built_with.cuda);
  if (toolkit.empty()) {
    check.judge(Verdict::warning, "a build with CUDA: programs of this one cannot use GPUs",
                "install a CUDA toolkit and NCCL, configure again; --cpus N for CPU ranks");
  } else if (driver.empty() || driver.front() < toolkit.front()) {
    check.judge(Verdict::failed, text("a driver for CUDA ", toolkit.front(), " at least"),
                "update the driver, or build with the driver's CUDA");
  }
  return check;
}

Check check_peers(CheckedJob const& job, Machine const& machine) {
  Check check{.name = "peer access"};
  // NVIDIA's MIG user guide: no GPU to GPU access, neither over PCIe nor over NVLink.
  if (std::ranges::any_of(job.gpus, &GpuId::is_mig)) {
    check.found = "MIG instances have none: their ranks go through the host's memory";
    return check;
  }
  auto const cards = cards_of(job, machine);
  if (cards.size() < 2) {
    check.found = "one GPU";
    return check;
  }
  std::vector<std::string> closed;
  std::vector<std::string> untold;
  bool all_linked = true;
  bool some_linked = false;
  for (PhysicalIndex const from : cards) {
    for (PhysicalIndex const to : cards) {
      PeerAccess const access = access_of(machine, from, to);
      std::string const pair = text(from, " to ", to);
      if (access == PeerAccess::none) closed.push_back(pair);
      if (access == PeerAccess::unknown) untold.push_back(pair);
      all_linked = all_linked && (access == PeerAccess::nvlink || access == PeerAccess::itself);
      some_linked = some_linked || access == PeerAccess::nvlink;
    }
  }
  check.details = matrix(cards, machine);
  if (closed.empty() && untold.empty()) {
    check.found = text("all pairs, ", all_linked    ? "over NVLink"
                                      : some_linked ? "some over PCIe"
                                                    : "over PCIe");
    return check;
  }
  std::vector<std::string> parts;
  if (!closed.empty()) parts.push_back("none from GPU " + join(closed, ", "));
  if (!untold.empty()) parts.push_back("the driver does not tell of GPU " + join(untold, ", "));
  check.found = join(parts, "; ");
  // NCCL's user guide, troubleshooting of GPUs.
  return check.judge(
      Verdict::warning,
      "direct access between all: NCCL goes through the host's memory instead, which is slower",
      "see nvidia-smi topo -p2p r; where the GPUs could, turn off the IOMMU and PCI ACS in BIOS or kernel");
}

}  // namespace ddp::launcher
