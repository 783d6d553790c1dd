#include "launcher/check/check_report.hpp"

#include <algorithm>
#include <array>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/ascii.hpp"
#include "ddp/core/text.hpp"
#include "device/registry/map_devices.hpp"
#include "launcher/plan/gpu_choice.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;

/// Text from other libraries need not be UTF-8.
std::string printed(Json const& report) {
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::array<int, 3> count(std::span<Check const> checks) {
  std::array<int, 3> counts{};
  for (Check const& check : checks) ++counts[static_cast<std::size_t>(check.verdict)];
  return counts;
}

char const* verdict_name(Verdict verdict) {
  constexpr std::array kInOrder{"OK", "WARNING", "FAILED"};
  return kInOrder.at(static_cast<std::size_t>(verdict));
}

Json memory_json(std::optional<MemoryInfo> const& memory) {
  if (!memory) return nullptr;
  return {{"free", memory->free.value}, {"total", memory->total.value}};
}

char const* access_name(PeerAccess access) {
  constexpr std::array kInOrder{"unknown", "itself", "none", "pcie", "nvlink"};
  return kInOrder.at(static_cast<std::size_t>(access));
}

Json gpu_json(PhysicalGpu const& gpu, Machine const& machine) {
  Json instances = Json::array();
  for (MigInstance const& instance : gpu.mig) {
    instances.push_back({{"uuid", instance.uuid.value}, {"memory", memory_json(instance.memory)}});
  }
  auto const node = machine.node_of(gpu);
  return {{"index", gpu.index.value()},
          {"name", gpu.name},
          {"uuid", gpu.uuid.value},
          {"pci_bus_id", gpu.pci_bus_id},
          {"compute_capability", {gpu.compute_major, gpu.compute_minor}},
          {"memory", memory_json(gpu.memory)},
          {"processes", gpu.compute_processes},
          {"numa_node", node ? Json(*node) : Json(nullptr)},
          {"mig_mode", gpu.mig_mode},
          {"mig", std::move(instances)}};
}

/// The driver's GPUs, in the order of their physical numbers.
Json machine_json(Machine const& machine) {
  Json report{{"host", machine.host},         {"driver", machine.driver_version},
              {"cuda", machine.cuda_version}, {"problem", machine.gpu_problem},
              {"gpus", Json::array()},        {"peer_access", Json::array()}};
  for (PhysicalGpu const& gpu : machine.gpus) report["gpus"].push_back(gpu_json(gpu, machine));
  for (auto const& row : machine.peers) {
    Json& names = report["peer_access"].emplace_back(Json::array());
    for (PeerAccess const access : row) names.push_back(access_name(access));
  }
  return report;
}

/// The device map of the ranks that these options start.
DeviceMap map_of(Options const& options, Machine const& machine) {
  auto const visible = named_gpus(options, machine).gpus;
  std::vector<std::optional<Bytes>> const slices(static_cast<std::size_t>(options.ranks_per_device));
  std::vector<std::optional<Bytes>> const whole(1);
  return map_devices(
      machine.gpus, visible, [&](GpuId const&) { return slices; }, visible.empty() ? slices : whole);
}

/// "NCCL 2.28.3", or that there is none.
std::string named(char const* name, LibraryVersion const& found) {
  if (found.version.empty()) return text("no ", name);
  return is_letter(found.version.front()) && found.version != "of unknown version"
             ? found.version
             : text(name, ' ', found.version);
}

Json version_json(std::string const& version) { return version.empty() ? Json(nullptr) : Json(version); }

}  // namespace

std::string check_text(std::span<Check const> checks) {
  std::size_t width = 0;
  for (Check const& check : checks) width = std::max(width, check.name.size());
  Classic<std::ostringstream> out;
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
  Json report{{"ok", ok},
              {"warnings", warnings},
              {"failed", failed},
              {"exit_code", exit_code_of(checks)},
              {"checks", Json::array()}};
  for (Check const& check : checks) {
    report["checks"].push_back({{"name", check.name},
                                {"verdict", verdict_name(check.verdict)},
                                {"found", check.found},
                                {"expected", check.expected},
                                {"advice", check.advice}});
  }
  report.update(machine_json(machine));
  return printed(report);
}

DeviceVersions ask_versions(std::string const& built_cuda, std::function<void()> const& meanwhile) {
  VersionQuestion nccl = ask_version(kNccl);
  VersionQuestion cudnn = ask_version(kCudnn);
  VersionQuestion mpi = ask_version(kMpi);
  meanwhile();
  return {built_cuda, nccl.answer(), cudnn.answer(), mpi.answer()};
}

std::string devices_text(Options const& options, Machine const& machine, DeviceVersions const& versions) {
  Classic<std::ostringstream> out;
  out << to_text(map_of(options, machine));
  if (machine.gpus.empty() && machine.gpu_problem.empty()) {
    out << (machine.driver_version.empty() ? "no GPU, and no NVIDIA driver"
                                           : text("driver ", machine.driver_version, " lists no GPU"))
        << '\n';
  }
  if (!machine.gpu_problem.empty()) out << machine.gpu_problem << '\n';
  std::vector<std::string> parts;
  if (!machine.driver_version.empty()) {
    parts.push_back(text("driver ", machine.driver_version,
                         machine.cuda_version.empty() ? "" : text(" (CUDA ", machine.cuda_version, ")")));
  }
  parts.push_back(versions.cuda_runtime.empty() ? "built without CUDA"
                                                : "CUDA runtime " + versions.cuda_runtime);
  parts.push_back(named("NCCL", versions.nccl));
  parts.push_back(named("cuDNN", versions.cudnn));
  parts.push_back(named("MPI", versions.mpi));
  parts.push_back(text(machine.allowed_cores, machine.allowed_cores == 1 ? " CPU core" : " CPU cores"));
  out << join(parts, ", ") << '\n';
  return std::move(out).str();
}

std::string devices_json(Options const& options, Machine const& machine, DeviceVersions const& versions) {
  Json report = machine_json(machine);
  report.update(Json::parse(to_json(map_of(options, machine))));
  report["versions"] = {{"driver", version_json(machine.driver_version)},
                        {"cuda_driver", version_json(machine.cuda_version)},
                        {"cuda_runtime", version_json(versions.cuda_runtime)},
                        {"nccl", version_json(versions.nccl.version)},
                        {"cudnn", version_json(versions.cudnn.version)},
                        {"mpi", version_json(versions.mpi.version)}};
  report["cpu_cores"] = machine.allowed_cores;
  return printed(report);
}

}  // namespace ddp::launcher
