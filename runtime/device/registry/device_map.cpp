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

std::string describe(FoundGpu const& found) {
  PhysicalGpu const& gpu = *found.gpu;
  auto const& memory = found.memory();
  return text(
      gpu.name, ", pci ", gpu.pci_bus_id, ", sm_", gpu.compute_major, gpu.compute_minor, ", ",
      memory ? text(gibibytes(memory->total), " GiB (", gibibytes(memory->total - memory->free), " used)")
             : std::string("memory unknown"),
      ", uuid ", found.uuid(), users_of(gpu));
}

Json memory_json(std::optional<MemoryInfo> const& memory) {
  if (!memory) return nullptr;
  return {{"free", memory->free.value}, {"total", memory->total.value}};
}

/// The GPUs of none of its logical devices.
std::vector<PhysicalGpu> hidden_of(DeviceMap const& map) {
  std::vector<PhysicalGpu> hidden = map.gpus;
  std::erase_if(hidden, [&](PhysicalGpu const& gpu) {
    return std::any_of(map.logical.begin(), map.logical.end(), [&](LogicalDevice const& row) {
      return find_gpu(std::span(&gpu, 1), row.uuid).has_value();
    });
  });
  return hidden;
}

}  // namespace

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

DeviceMap map_devices(std::span<PhysicalGpu const> gpus, std::span<GpuId const> visible,
                      LimitsOf const& limits_of, std::span<std::optional<Bytes> const> cpus) {
  DeviceMap map{{}, {gpus.begin(), gpus.end()}};
  std::ranges::sort(map.gpus, {}, &PhysicalGpu::index);
  int number = 0;
  for (GpuId const& uuid : visible) {
    PhysicalGpu const& gpu = *find_gpu(gpus, uuid).value().gpu;
    LogicalDevice row;
    row.device.kind = DeviceKind::cuda;
    row.visible = number++;
    row.name = gpu.name;
    row.uuid = uuid;
    row.pci_bus_id = gpu.pci_bus_id;
    add_slices(map.logical, row, limits_of(uuid));
  }
  LogicalDevice cpu;
  cpu.name = "CPU";
  add_slices(map.logical, cpu, cpus);
  return map;
}

DeviceMap device_map() { return DeviceRegistry::of_process().map(); }

std::string to_text(DeviceMap const& map) {
  Classic<std::ostringstream> out;
  for (LogicalDevice const& row : map.logical) {
    auto const found = find_gpu(map.gpus, row.uuid);
    out << row.device << " -> " << (found ? text("physical ", found->gpu->index) : row.name);
    if (row.slices > 1) out << ", virtual " << row.slice << " of " << row.slices;
    if (row.limit) out << ", at most " << to_string(*row.limit);
    if (found) out << ": " << describe(*found);
    out << '\n';
  }
  for (PhysicalGpu const& gpu : hidden_of(map)) {
    out << "hidden -> physical " << gpu.index << ": " << describe({&gpu}) << '\n';
  }
  return std::move(out).str();
}

std::string to_json(DeviceMap const& map) {
  Json logical = Json::array();
  for (LogicalDevice const& row : map.logical) {
    auto const found = find_gpu(map.gpus, row.uuid);
    Json each{{"device", to_string(row.device)},
              {"physical", found ? Json(found->gpu->index.value()) : Json(nullptr)},
              {"visible", row.visible ? Json(*row.visible) : Json(nullptr)},
              {"virtual", row.slices > 1 ? Json(row.slice) : Json(nullptr)},
              {"limit", row.limit ? Json(row.limit->value) : Json(nullptr)}};
    if (found) {
      each.update({{"name", row.name},
                   {"uuid", row.uuid.value},
                   {"pci_bus_id", row.pci_bus_id},
                   {"compute_capability", {found->gpu->compute_major, found->gpu->compute_minor}},
                   {"memory", memory_json(found->memory())},
                   {"processes", found->gpu->compute_processes}});
    }
    logical.push_back(std::move(each));
  }
  Json hidden = Json::array();
  for (PhysicalGpu const& gpu : hidden_of(map)) {
    hidden.push_back({{"physical", gpu.index.value()}, {"name", gpu.name}, {"uuid", gpu.uuid.value}});
  }
  return Json{{"logical", std::move(logical)}, {"hidden", std::move(hidden)}}.dump(2);
}

std::string users_of(PhysicalGpu const& gpu) {
  if (gpu.compute_processes.empty()) return {};
  return text(", in use by pid ", join(gpu.compute_processes, ", "));
}

}  // namespace ddp
