#include "launcher/plan/gpu_choice.hpp"

#include <algorithm>
#include <thread>

#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_map.hpp"
#include "device/registry/cuda_device_order.hpp"
#include "device/registry/gpu_id.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

std::vector<GpuId> visible_uuids(Machine const& machine, std::vector<std::string>& warnings) {
  auto const gpus = ordered_by(machine.cuda_order, machine.gpus);
  if (machine.cuda_visible_devices && !gpus.empty()) {
    auto const visible = read_cuda_visible_devices(machine.cuda_visible_devices, gpus);
    if (auto const odd = oddity(*machine.cuda_visible_devices, visible.size())) warnings.push_back(*odd);
  }
  return visible_device_ids(machine.cuda_visible_devices, gpus);
}

/// Why no rank can start there; empty if one can.
std::string memory_problem(FoundGpu const& found) {
  auto const& memory = found.memory();
  if (!memory || memory->free >= kLeastFreeMemory) return {};
  PhysicalGpu const& gpu = *found.gpu;
  return text("GPU ", gpu.index, " (", gpu.name, " ", found.uuid(), ") has ", memory_text(memory),
              users_of(gpu));
}

bool counts_by_index(std::string const& list) {
  return list.find_first_of("0123456789") != std::string::npos && !is_device_id(list);
}

/// CUDA counts the fastest GPU first. If the driver does not tell CUDA's order, ddp-launch counts by PCI bus.
void warn_of_order(Options const& options, Machine const& machine, std::vector<std::string>& warnings) {
  bool const by_index = (options.gpus && counts_by_index(*options.gpus)) ||
                        (machine.cuda_visible_devices && counts_by_index(*machine.cuda_visible_devices));
  bool const unsure =
      may_differ_from_cuda(machine.gpus, machine.cuda_device_order) && machine.cuda_order.empty();
  if (!unsure || !by_index) return;
  std::vector<std::string> order;
  for (PhysicalGpu const& gpu : machine.gpus) order.push_back(text(gpu.index, " = ", gpu.name));
  warnings.push_back(text("the GPUs are of several models, and ddp-launch counts them in the order of PCI (",
                          join(order, ", "),
                          "), while CUDA counts the fastest first: name them by UUID, or set "
                          "CUDA_DEVICE_ORDER=PCI_BUS_ID"));
}

int cpu_ranks(Options const& options, Machine const& machine) {
  if (options.cpus) return *options.cpus;
  if (options.per_node == PerNode::count) return *options.ranks_per_node;
  if (options.per_node != PerNode::unset) return std::clamp(machine.allowed_cores, 1, kMaxRanks);
  // The CPU is one device: as many ranks share it as would share a GPU.
  return options.ranks_per_device > 1 ? options.ranks_per_device : std::clamp(machine.physical_cores, 1, 2);
}

/// Keeps as many of the visible GPUs as --nproc-per-node says; none if none is visible.
void keep_those_per_node(std::vector<GpuId>& gpus, Options const& options, Machine const& machine) {
  if (gpus.empty() && !machine.gpu_problem.empty()) {
    throw ExitError(exit_code::kNoDevice, text("--nproc-per-node: ", machine.gpu_problem,
                                               "; --cpus N starts N CPU ranks all the same"));
  }
  if (gpus.empty() || options.per_node != PerNode::count) return;
  auto const wanted = static_cast<std::size_t>(*options.ranks_per_node);
  if (wanted > gpus.size()) {
    throw ExitError(
        exit_code::kNoDevice,
        text("--nproc-per-node ", wanted, ": ", gpus.size(), gpus.size() == 1 ? " GPU is" : " GPUs are",
             " visible; --virtual N lets N ranks share each, --cpus N starts N CPU ranks"));
  }
  gpus.resize(wanted);
}

}  // namespace

std::string memory_text(std::optional<MemoryInfo> const& memory) {
  return memory ? text(to_string(memory->free), " of ", to_string(memory->total), " free") : "memory unknown";
}

GpuChoice named_gpus(Options const& options, Machine const& machine) {
  GpuChoice choice;
  choice.cpu_ranks = cpu_ranks(options, machine);
  if (options.cpus || options.per_node == PerNode::cores) return choice;
  choice.gpus = visible_uuids(machine, choice.warnings);
  if (options.gpus) {
    choice.gpus = select_gpus(*options.gpus, choice.gpus, machine.cuda_visible_devices, machine.gpu_problem);
  } else if (options.per_node != PerNode::unset) {
    keep_those_per_node(choice.gpus, options, machine);
  } else if (!machine.gpu_problem.empty()) {
    choice.warnings.push_back(
        text(machine.gpu_problem, machine.gpus.empty() ? "; starting CPU ranks" : "; starting without it"));
  } else if (machine.gpus.empty() && machine.cuda_visible_devices &&
             names_gpus(*machine.cuda_visible_devices)) {
    choice.warnings.push_back(text("CUDA_VISIBLE_DEVICES=", *machine.cuda_visible_devices,
                                   " names GPUs, and no NVIDIA driver is loaded on ", machine.host,
                                   "; starting CPU ranks (--cpus N asks for them)"));
  }
  warn_of_order(options, machine, choice.warnings);
  return choice;
}

GpuChoice choose_gpus(Options const& options, Machine const& machine) {
  GpuChoice choice = named_gpus(options, machine);
  std::vector<std::string> problems;
  for (GpuId const& chosen : choice.gpus) {
    std::string problem = memory_problem(find_gpu(machine.gpus, chosen).value());
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) {
    throw ExitError(exit_code::kRetry,
                    text(join(problems, "; "), "; a rank needs ", to_string(kLeastFreeMemory),
                         " at least: wait, or choose others with --gpus"));
  }
  return choice;
}

void await_free_gpus(std::function<void()> const& call, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  for (Deadline const deadline = Deadline::after(timeout);;) {
    try {
      return call();
    } catch (ExitError const& error) {
      if (error.exit_code() != exit_code::kRetry || deadline.expired()) throw;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace ddp::launcher
