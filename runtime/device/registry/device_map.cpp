#include "ddp/device/device_map.hpp"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ddp/core/text.hpp"
#include "device/registry/device_registry.hpp"
#include "device/registry/map_devices.hpp"

namespace ddp {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

std::string gibibytes(Bytes bytes) {
  return text(std::fixed, std::setprecision(1), static_cast<double>(bytes.value) / kGibibyte);
}

std::string describe(PhysicalGpu const& gpu, std::string const& uuid) {
  auto const memory = memory_of(gpu, uuid);
  return text(
      gpu.name, ", pci ", gpu.pci_bus_id, ", sm_", gpu.compute_major, gpu.compute_minor, ", ",
      memory ? text(gibibytes(memory->total), " GiB (", gibibytes(memory->total - memory->free), " used)")
             : std::string("memory unknown"),
      ", uuid ", uuid, users_of(gpu));
}

Json memory_json(std::optional<MemoryInfo> const& memory) {
  if (!memory) return nullptr;
  return {{"free", memory->free.value}, {"total", memory->total.value}};
}

}  // namespace

bool has_id(PhysicalGpu const& gpu, std::string const& uuid) {
  return gpu.uuid == uuid || std::any_of(gpu.mig.begin(), gpu.mig.end(),
                                         [&](MigInstance const& part) { return part.uuid == uuid; });
}

std::optional<MemoryInfo> memory_of(PhysicalGpu const& gpu, std::string const& uuid) {
  for (MigInstance const& part : gpu.mig) {
    if (part.uuid == uuid) return part.memory;
  }
  return gpu.memory;
}

void add_slices(std::vector<LogicalDevice>& all, LogicalDevice whole,
                std::span<std::optional<Bytes> const> limits) {
  bool const goes_on = !all.empty() && all.back().device.kind == whole.device.kind;
  int const first = goes_on ? all.back().device.index.value() + 1 : 0;
  whole.slices = static_cast<int>(limits.size());
  for (whole.slice = 0; whole.slice < whole.slices; ++whole.slice) {
    whole.limit = limits[static_cast<std::size_t>(whole.slice)];
    whole.device.index = DeviceIndex{first + whole.slice};
    all.push_back(whole);
  }
}

DeviceMap map_devices(std::span<PhysicalGpu const> gpus, std::span<std::string const> visible,
                      LimitsOf const& limits_of, std::span<std::optional<Bytes> const> cpus) {
  DeviceMap map;
  std::vector<bool> seen(gpus.size());
  for (std::size_t i = 0; i < visible.size(); ++i) {
    auto const gpu = std::find_if(gpus.begin(), gpus.end(),
                                  [&](PhysicalGpu const& each) { return has_id(each, visible[i]); });
    if (gpu == gpus.end()) continue;
    seen[static_cast<std::size_t>(gpu - gpus.begin())] = true;
    LogicalDevice row;
    row.device.kind = DeviceKind::cuda;
    row.visible = static_cast<int>(i);
    row.name = gpu->name;
    row.uuid = visible[i];
    row.pci_bus_id = gpu->pci_bus_id;
    row.gpu = *gpu;
    add_slices(map.logical, row, limits_of(row.uuid));
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (!seen[i]) map.hidden.push_back(gpus[i]);
  }
  std::sort(map.hidden.begin(), map.hidden.end(),
            [](PhysicalGpu const& a, PhysicalGpu const& b) { return a.index < b.index; });
  LogicalDevice cpu;
  cpu.name = "CPU";
  add_slices(map.logical, cpu, cpus);
  return map;
}

DeviceMap device_map() { return DeviceRegistry::of_process().map(); }

std::string to_text(DeviceMap const& map) {
  Classic<std::ostringstream> out;
  for (LogicalDevice const& row : map.logical) {
    out << row.device << " -> " << (row.gpu ? text("physical ", row.gpu->index) : row.name);
    if (row.slices > 1) out << ", virtual " << row.slice << " of " << row.slices;
    if (row.limit) out << ", at most " << to_string(*row.limit);
    if (row.gpu) out << ": " << describe(*row.gpu, row.uuid);
    out << '\n';
  }
  for (PhysicalGpu const& gpu : map.hidden) {
    out << "hidden -> physical " << gpu.index << ": " << describe(gpu, gpu.uuid) << '\n';
  }
  return std::move(out).str();
}

std::string to_json(DeviceMap const& map) {
  Json logical = Json::array();
  for (LogicalDevice const& row : map.logical) {
    Json each{{"device", to_string(row.device)},
              {"physical", row.gpu ? Json(row.gpu->index) : Json(nullptr)},
              {"visible", row.gpu ? Json(row.visible) : Json(nullptr)},
              {"virtual", row.slices > 1 ? Json(row.slice) : Json(nullptr)},
              {"limit", row.limit ? Json(row.limit->value) : Json(nullptr)}};
    if (row.gpu) {
      each.update({{"name", row.name},
                   {"uuid", row.uuid},
                   {"pci_bus_id", row.pci_bus_id},
                   {"compute_capability", {row.gpu->compute_major, row.gpu->compute_minor}},
                   {"memory", memory_json(memory_of(*row.gpu, row.uuid))},
                   {"processes", row.gpu->compute_processes}});
    }
    logical.push_back(std::move(each));
  }
  Json hidden = Json::array();
  for (PhysicalGpu const& gpu : map.hidden) {
    hidden.push_back({{"physical", gpu.index}, {"name", gpu.name}, {"uuid", gpu.uuid}});
  }
  return Json{{"logical", std::move(logical)}, {"hidden", std::move(hidden)}}.dump(2);
}

std::string users_of(PhysicalGpu const& gpu) {
  if (gpu.compute_processes.empty()) return {};
  return text(", in use by pid ", join(gpu.compute_processes, ", "));
}

}  // namespace ddp
