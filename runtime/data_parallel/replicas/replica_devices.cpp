#include "data_parallel/replicas/replica_devices.hpp"

#include <algorithm>

#include "data_parallel/replicas/device_choice.hpp"
#include "reducer/checks/parameter_check.hpp"

namespace ddp {

void check_devices(std::span<Device const> devices) {
  require_one_kind(devices);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    require(std::ranges::count(devices.first(i), devices[i]) == 0, [&] {
      return text("device_ids names ", devices[i], " twice (", join(devices, ", "),
                  "); a device has one replica: name each once, or make virtual devices of it "
                  "(set_logical_devices, DDP_VIRTUAL_DEVICES)");
    });
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

}  // namespace ddp
