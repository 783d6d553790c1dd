#include "device/registry/device_registry.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "core/parse_number.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/queries.hpp"
#include "device/cuda/backend.hpp"
#include "device/info/api_call.hpp"
#include "device/registry/cuda_device_order.hpp"
#include "device/registry/cuda_visible_devices.hpp"
#include "device/registry/gpu_id.hpp"
#include "device/registry/map_devices.hpp"
#include "device/registry/misspelt_variables.hpp"

namespace ddp {
namespace {

constexpr char const* kVirtual = "DDP_VIRTUAL_DEVICES";
constexpr char const* kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";  // 8 where it is unset
constexpr char const* kMostConnections = "32";

std::optional<std::string> variable(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

DeviceSources sources_of_process() {
  return {
      .gpus = [] { return in_cuda_order(read_inventory().gpus, variable("CUDA_DEVICE_ORDER")); },
      .visible =
          [] {
            warn_of_misspelt_variables();  // for programs that never make a World
            return cuda::visible_devices();
          },
      .cuda_in_use = cuda_is_initialized,
      .get_variable = variable,
      .set_variable = [](char const* name, std::string const& value) { ::setenv(name, value.c_str(), 1); },
      .why_none = cuda::why_no_devices};
}

/// CUDA writes the id of a MIG instance as a GPU's.
bool same_id(GpuId const& a, GpuId const& b) {
  return is_device_id(a.value) && is_device_id(b.value) && id_digits(a.value) == id_digits(b.value);
}

/// "1", "1 and 2", "1, 2 and 3".
template <class Parts>
std::string enumeration(Parts const& parts) {
  Classic<std::ostringstream> out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    out << (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") << parts[i];
  }
  return std::move(out).str();
}

}  // namespace

std::string counted(std::size_t count, char const* what) {
  return text(count, " ", what, count == 1 ? "" : "s");
}

DeviceRegistry& DeviceRegistry::of_process() {
  // Never destroyed: other statics free memory of devices at exit.
  static auto& registry = *new DeviceRegistry(sources_of_process());
  return registry;
}

bool DeviceRegistry::is_settled(DeviceKind kind) const noexcept {
  return of(kind).settled.load(std::memory_order_acquire);
}

std::vector<PhysicalDevice> DeviceRegistry::physical(DeviceKind kind) {
  std::lock_guard const lock(mutex_);
  if (kind == DeviceKind::cpu) {
    return {PhysicalDevice{}};
  }
  auto const gpus = sources_.gpus();
  std::vector<PhysicalDevice> all;
  for (GpuId const& uuid :
       visible_device_ids(inherited_ ? *inherited_ : sources_.get_variable(kVisibleVariable), gpus)) {
    all.push_back({DeviceKind::cuda, static_cast<int>(all.size()), uuid, *find_gpu(gpus, uuid).value().gpu});
  }
  return all;
}

std::span<LogicalDevice const> DeviceRegistry::logical(DeviceKind kind) {
  if (!is_settled(kind)) settle(kind);
  return of(kind).devices;
}

void DeviceRegistry::settle(DeviceKind kind) {
  std::lock_guard const lock(mutex_);
  if (is_settled(kind)) return;
  of(kind).devices = kind == DeviceKind::cpu ? list_cpus() : list_gpus();
  of(kind).settled_by = ApiCall::current();
  of(kind).settled.store(true, std::memory_order_release);
}

std::size_t DeviceRegistry::slices_of_environment() const {
  auto const given = sources_.get_variable(kVirtual);
  if (!given) return 1;
  auto const value = parse_number<int>(*given);
  ddp::require(value && *value >= 1 && *value <= DeviceRegistry::kMaxSlices,
               text(kVirtual, "=", *given,
                    ": expected the number of logical devices that each device stands for, 1 to ",
                    DeviceRegistry::kMaxSlices));
  return static_cast<std::size_t>(*value);
}

std::vector<std::optional<Bytes>> DeviceRegistry::limits_of_cpu(std::function<bool()> const& has_gpus) const {
  auto const& cuts = of(DeviceKind::cpu).cuts;
  if (auto const cut = cuts.find(0); cut != cuts.end()) return cut->second;
  std::size_t const slices = slices_of_environment();
  // The variable is about GPUs if there are any.
  return std::vector<std::optional<Bytes>>(slices > 1 && !has_gpus() ? slices : 1);
}

std::vector<std::optional<Bytes>> DeviceRegistry::limits_of_gpu(
    GpuId const& uuid, std::span<PhysicalDevice const> physical) const {
  for (auto const& [number, limits] : of(DeviceKind::cuda).cuts) {
    auto const index = static_cast<std::size_t>(number);
    if (index < physical.size() && same_id(physical[index].uuid, uuid)) return limits;
  }
  return std::vector<std::optional<Bytes>>(slices_of_environment());
}

std::vector<LogicalDevice> DeviceRegistry::list_cpus() {
  LogicalDevice cpu;
  cpu.name = "CPU";
  std::vector<LogicalDevice> all;
  add_slices(all, cpu, limits_of_cpu([this] { return !logical(DeviceKind::cuda).empty(); }));
  return all;
}

std::vector<LogicalDevice> DeviceRegistry::list_gpus() {
  bool const cut = !of(DeviceKind::cuda).cuts.empty();
  auto const physical = cut ? this->physical(DeviceKind::cuda) : std::vector<PhysicalDevice>{};
  std::size_t const slices = slices_of_environment();  // a bad value is refused without GPUs too
  // Streams that share a queue to the GPU wait for each other, and each slice has several.
  if ((cut || slices > 1) && !sources_.get_variable(kConnections)) {
    sources_.set_variable(kConnections, kMostConnections);
  }
  std::vector<LogicalDevice> all;
  for (LogicalDevice gpu : sources_.visible()) {
    gpu.device.kind = DeviceKind::cuda;
    add_slices(all, gpu, limits_of_gpu(gpu.uuid, physical));
  }
  return all;
}

DeviceMap DeviceRegistry::map() {
  std::lock_guard const lock(mutex_);
  auto const gpus = sources_.gpus();
  auto const visible = visible_device_ids(sources_.get_variable(kVisibleVariable), gpus);
  auto const physical = this->physical(DeviceKind::cuda);
  return map_devices(
      gpus, visible, [&](GpuId const& uuid) { return limits_of_gpu(uuid, physical); },
      limits_of_cpu([&] { return !visible.empty(); }));
}

LogicalDevice const& DeviceRegistry::at(Device device) {
  require(std::span(&device, 1));
  return logical(device.kind)[device.index.index()];
}

void DeviceRegistry::require(std::span<Device const> devices) {
  for (Device const device : devices) {
    auto const all = logical(device.kind);
    if (device.index.value() < 0 || device.index.index() >= all.size()) {
      throw Error(ErrorCode::not_found, missing(device, devices));
    }
  }
}

std::string DeviceRegistry::what_there_is(DeviceKind kind, std::map<GpuId, PhysicalIndex> const& numbers) {
  auto const all = logical(kind);
  std::vector<std::string> each;
  for (LogicalDevice const& device : all) {
    auto const number = numbers.find(device.uuid);
    each.push_back(kind == DeviceKind::cpu   ? to_string(device.device)
                   : number == numbers.end() ? text(device.device, " = ", device.name, " ", device.pci_bus_id)
                                             : text(device.device, " = physical ", number->second));
  }
  std::string const list = each.empty() ? std::string() : text(" (", join(each, ", "), ")");
  if (kind == DeviceKind::cpu) {
    return text("there ", all.size() == 1 ? "is " : "are ", counted(all.size(), "logical CPU device"), list,
                "; set_logical_devices() and DDP_VIRTUAL_DEVICES=n make more");
  }
  auto const visible = sources_.get_variable(kVisibleVariable);
  std::string const why = !chosen_.empty() ? chosen_
                          : visible        ? text(kVisibleVariable, "=", *visible)
                                           : text(kVisibleVariable, " is not set, which");
  std::string const left = text(why, " leaves ", counted(all.size(), "logical device"), list);
  std::string const cause = all.empty() && sources_.why_none ? sources_.why_none() : "";
  return cause.empty() ? left : text(left, " (", cause, "); ddp-launch --list-devices shows what is there");
}

std::string DeviceRegistry::describe_gpus() {
  std::lock_guard const lock(mutex_);
  return what_there_is(DeviceKind::cuda, {});
}

std::string DeviceRegistry::missing(Device device, std::span<Device const> together) {
  std::lock_guard const lock(mutex_);
  std::string message = text("invalid device id ", device.index, ": ");
  if (device.kind == DeviceKind::cpu) return message + what_there_is(DeviceKind::cpu, {});
  if (!is_built_with_cuda() && logical(DeviceKind::cuda).empty()) {
    return message + "this build of ddp has no CUDA";
  }
  auto const all = logical(DeviceKind::cuda);
  std::map<GpuId, PhysicalIndex> numbers;  // the driver's, by the UUIDs of visible devices
  for (PhysicalDevice const& physical : this->physical(DeviceKind::cuda)) {
    for (LogicalDevice const& each : all) {
      if (same_id(each.uuid, physical.uuid)) numbers[each.uuid] = physical.gpu->index;
    }
  }
  message += what_there_is(DeviceKind::cuda, numbers);
  // If all the numbers are those of the driver for visible GPUs, these were probably meant.
  std::vector<int> asked;
  std::vector<std::string> found;
  for (Device const each : together) {
    auto const there = std::find_if(all.begin(), all.end(), [&](LogicalDevice const& one) {
      auto const number = numbers.find(one.uuid);
      return number != numbers.end() && number->second == each.index.value();
    });
    if (each.kind != DeviceKind::cuda || there == all.end()) return message;
    asked.push_back(each.index.value());
    found.push_back(to_string(there->device));
  }
  return text(message, "; the physical ", asked.size() == 1 ? "device " : "devices ", enumeration(asked),
              asked.size() == 1 ? " is " : " are ", enumeration(found));
}

}  // namespace ddp
