#include "launcher/check_report.hpp"

#include <algorithm>
#include <array>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;

std::array<int, 3> count(std::span<Check const> checks) {
  std::array<int, 3> counts{};
  for (Check const& check : checks) ++counts[static_cast<std::size_t>(check.verdict)];
  return counts;
}

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

}  // namespace

char const* verdict_name(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::ok:
      return "OK";
    case Verdict::warning:
      return "WARNING";
    case Verdict::failed:
      break;
  }
  return "FAILED";
}

std::string check_text(std::span<Check const> checks) {
  std::size_t width = 0;
  for (Check const& check : checks) width = std::max(width, check.name.size());
  std::ostringstream out;
  for (Check const& check : checks) {
    out << std::left << std::setw(9) << verdict_name(check.verdict) << std::setw(static_cast<int>(width) + 2)
        << check.name << check.found;
    if (!check.expected.empty()) out << "; expected " << check.expected;
    if (!check.advice.empty()) out << ". To do: " << check.advice;
    out << '\n';
    for (std::string const& line : check.details) out << std::string(11 + width, ' ') << line << '\n';
  }
  auto const [ok, warnings, failed] = count(checks);
  out << ok << " ok, " << warnings << (warnings == 1 ? " warning, " : " warnings, ") << failed << " failed\n";
  return std::move(out).str();
}

std::string check_json(std::span<Check const> checks, Machine const& machine) {
  auto const [ok, warnings, failed] = count(checks);
  Json report{{"host", machine.host},
              {"ok", ok},
              {"warnings", warnings},
              {"failed", failed},
              {"exit_code", exit_code_of(checks)},
              {"checks", Json::array()},
              {"driver", machine.driver_version},
              {"cuda", machine.cuda_version},
              {"gpus", Json::array()},
              {"peer_access", Json::array()}};
  for (Check const& check : checks) {
    report["checks"].push_back({{"name", check.name},
                                {"verdict", verdict_name(check.verdict)},
                                {"found", check.found},
                                {"expected", check.expected},
                                {"advice", check.advice}});
  }
  for (PhysicalGpu const& gpu : machine.gpus) report["gpus"].push_back(gpu_json(gpu, machine));
  for (auto const& row : machine.peers) {
    Json& names = report["peer_access"].emplace_back(Json::array());
    for (PeerAccess const access : row) names.push_back(access_name(access));
  }
  // Words of other libraries may be no UTF-8.
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddp::launcher
