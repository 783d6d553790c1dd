#include "launcher/device_report.hpp"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ddp/core/text.hpp"
#include "launcher/gpu_choice.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;

Json memory_json(std::optional<MemoryInfo> const& memory) {
  if (!memory) return nullptr;
  return {{"free", memory->free.value}, {"total", memory->total.value}};
}

char const* access_name(PeerAccess access) {
  switch (access) {
    case PeerAccess::itself:
      return "itself";
    case PeerAccess::none:
      return "none";
    case PeerAccess::direct:
      return "pcie";
    case PeerAccess::nvlink:
      return "nvlink";
    case PeerAccess::unknown:
      break;
  }
  return "unknown";
}

Json gpu_json(PhysicalGpu const& gpu, Machine const& machine) {
  Json instances = Json::array();
  for (MigInstance const& instance : gpu.mig) {
    instances.push_back({{"uuid", instance.uuid}, {"memory", memory_json(instance.memory)}});
  }
  auto const node = machine.gpu_nodes.find(gpu.uuid);
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci_bus_id", gpu.pci_bus_id},
          {"compute_capability", {gpu.compute_major, gpu.compute_minor}},
          {"memory", memory_json(gpu.memory)},
          {"processes", gpu.compute_processes},
          {"numa_node", node == machine.gpu_nodes.end() ? Json(nullptr) : Json(node->second)},
          {"mig_mode", gpu.mig_mode},
          {"mig", std::move(instances)}};
}

/// "cuda:1", or "hidden".
std::string logical(std::vector<ChosenGpu> const& gpus, std::string const& uuid) {
  auto const found =
      std::find_if(gpus.begin(), gpus.end(), [&](ChosenGpu const& gpu) { return gpu.uuid == uuid; });
  return found == gpus.end() ? "hidden" : text("cuda:", found - gpus.begin());
}

}  // namespace

std::string devices_text(Options const& options, Machine const& machine) {
  auto const visible = named_gpus(options, machine).gpus;
  std::ostringstream out;
  auto const line = [&](PhysicalGpu const& gpu, std::string const& uuid, std::string const& rest) {
    out << std::left << std::setw(8) << text("GPU ", gpu.index) << std::setw(8) << logical(visible, uuid)
        << uuid << ", " << rest << '\n';
  };
  for (PhysicalGpu const& gpu : machine.gpus) {
    auto const node = machine.gpu_nodes.find(gpu.uuid);
    line(gpu, gpu.uuid,
         text(gpu.name, ", ", gpu.pci_bus_id, ", sm_", gpu.compute_major, gpu.compute_minor, ", ",
              memory_text(gpu.memory),
              node == machine.gpu_nodes.end() ? "" : text(", NUMA node ", node->second), users_of(gpu)));
    for (MigInstance const& instance : gpu.mig) line(gpu, instance.uuid, memory_text(instance.memory));
  }
  if (machine.gpus.empty() && machine.gpu_problem.empty()) {
    out << (machine.driver_version.empty() ? "no GPU, and no NVIDIA driver"
                                           : text("driver ", machine.driver_version, " lists no GPU"))
        << '\n';
  }
  if (!machine.gpu_problem.empty()) out << machine.gpu_problem << '\n';
  return std::move(out).str();
}

std::string devices_json(Machine const& machine) {
  Json report{{"host", machine.host},         {"driver", machine.driver_version},
              {"cuda", machine.cuda_version}, {"problem", machine.gpu_problem},
              {"gpus", Json::array()},        {"peer_access", Json::array()}};
  for (PhysicalGpu const& gpu : machine.gpus) report["gpus"].push_back(gpu_json(gpu, machine));
  for (auto const& row : machine.peers) {
    Json& names = report["peer_access"].emplace_back(Json::array());
    for (PeerAccess const access : row) names.push_back(access_name(access));
  }
  // Words of other libraries may be no UTF-8.
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddp::launcher
