#include "data_parallel/replicas/replica_devices.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "reducer/checks/parameter_check.hpp"

namespace ddp {

void check_devices(std::span<Device const> devices) {
  require_devices(devices);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    auto const before = devices.first(i);
    require(std::find(before.begin(), before.end(), devices[i]) == before.end(), [&] {
      return text("device_ids names ", devices[i], " twice (", join(devices, ", "),
                  "); a device has one replica: name each once, or make virtual devices of it "
                  "(set_logical_devices, DDP_VIRTUAL_DEVICES)");
    });
    require(devices[i].kind == devices[0].kind,
            [&] { return text("device_ids must be GPUs only, or CPUs only, found ", join(devices, ", ")); });
  }
}

void check_output_device(Device output, std::span<Device const> devices) {
  require(devices.empty() || devices[0].kind == DeviceKind::cuda || output.kind == DeviceKind::cpu, [&] {
    return text("output_device is ", output, ", but device_ids are CPUs (", join(devices, ", "),
                "); outputs of CPU replicas are gathered on a CPU: leave output_device out, or name GPUs in "
                "device_ids");
  });
  require_devices({&output, 1});
}

void check_module_device(Module& module, std::span<Device const> devices) {
  auto const check = [&](char const* what, std::string const& name, TensorView const& tensor) {
    Device const found = tensor.device;
    if (found == devices[0]) {
      require_memory([&] { return text(what, " \"", name, "\""); }, tensor);
      return;
    }
    bool const listed = std::find(devices.begin(), devices.end(), found) != devices.end();
    std::string const remedy =
        listed ? text("put ", found, " first in device_ids")
               : text("the module's device ", found, " is not among device_ids (", join(devices, ", "),
                      "): put it first there, or make the module on ", devices[0]);
    throw Error(ErrorCode::invalid_argument,
                text("module must have its parameters and buffers on device ", devices[0],
                     " (device_ids[0]) but found ", what, " \"", name, "\" on device ", found, "; ", remedy));
  };
  for (Parameter const& parameter : module.parameters()) check("parameter", parameter.name, parameter.value);
  for (NamedTensor const& buffer : module.buffers()) check("buffer", buffer.name, buffer.value);
  require(module.device() == devices[0], [&] {
    return text("module must compute on device ", devices[0], " (device_ids[0]) but its stream is of ",
                module.device(), ": make it with a stream of ", devices[0]);
  });
}

std::optional<std::string> describe_imbalance(std::span<DeviceSize const> devices) {
  auto const warn = [](DeviceSize const& small, DeviceSize const& large, std::string const& what) {
    return text("replicas are only as fast as the slowest: ", small.device, " has less than 75 % of ",
                large.device, "'s ", what, "; to exclude it, leave ", small.device, " out of device_ids",
                small.device.kind == DeviceKind::cuda ? ", or out of CUDA_VISIBLE_DEVICES" : "");
  };
  auto const less = [](auto small, auto large) { return 4 * small < 3 * large; };
  auto const by_memory = [](auto const& a, auto const& b) { return a.memory < b.memory; };
  auto const by_cores = [](auto const& a, auto const& b) { return a.cores < b.cores; };
  if (devices.empty()) return std::nullopt;
  auto const [least, most] = std::minmax_element(devices.begin(), devices.end(), by_memory);
  if (less(least->memory.value, most->memory.value)) {
    return warn(*least, *most,
                text("memory (", to_string(least->memory), " of ", to_string(most->memory), ")"));
  }
  auto const [fewest, many] = std::minmax_element(devices.begin(), devices.end(), by_cores);
  if (less(fewest->cores, many->cores)) {
    return warn(*fewest, *many, text("cores (", fewest->cores, " of ", many->cores, ")"));
  }
  return std::nullopt;
}

std::vector<DeviceSize> device_sizes(std::span<Device const> devices) {
  std::vector<DeviceSize> sizes;
  for (Device const device : devices) {
    LogicalDevice const& there = logical_device(device);
    sizes.push_back({device, there.limit ? *there.limit : memory_info(device).total, there.sms});
  }
  return sizes;
}

}  // namespace ddp
