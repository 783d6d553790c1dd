#include "ddp/parallel/replicate.hpp"

#include <utility>

#include "ddp/core/text.hpp"
#include "device/block_copy.hpp"
#include "parallel/clone.hpp"
#include "parallel/replica_devices.hpp"

namespace ddp {

std::vector<TensorView> values_of(Module& module) {
  std::vector<TensorView> all;
  for (Parameter const& parameter : module.parameters()) all.push_back(parameter.value);
  for (Buffer const& buffer : module.buffers()) all.push_back(buffer.value);
  return all;
}

std::shared_ptr<Module> checked_clone(Module& module, Device device) {
  std::shared_ptr<Module> clone = module.clone_to(device);
  auto const expected = values_of(module);
  auto const found = values_of(*clone);
  require(expected.size() == found.size(), [&] {
    return text("the module's clone on ", device, " has ", found.size(), " parameters and buffers, expected ",
                expected.size(), "; do_clone() must make a module of the same structure");
  });
  for (std::size_t i = 0; i < found.size(); ++i) {
    bool const same = found[i].shape == expected[i].shape && found[i].dtype == expected[i].dtype &&
                      found[i].device == device;
    require(same, [&] {
      return text("parameter or buffer ", i, " of the module's clone on ", device, " is ", describe(found[i]),
                  ", that of the module is ", describe(expected[i]),
                  "; do_clone() must make a module of the same structure on the stream's device");
    });
  }
  return clone;
}

std::vector<std::shared_ptr<Module>> replicate(std::shared_ptr<Module> module,
                                               std::span<Device const> devices) {
  require(module != nullptr, "replicate: a module is needed, found none");
  require(!devices.empty(), "replicate: at least one device is needed, found none");
  check_devices(devices);
  check_module_device(*module, devices);
  std::vector<std::shared_ptr<Module>> replicas{std::move(module)};
  Module& primary = *replicas[0];
  auto const values = values_of(primary);
  for (Device const device : devices.subspan(1)) {
    auto const clone = replicas.emplace_back(checked_clone(primary, device));
    clone->stream().wait(primary.stream());
    auto const copies = values_of(*clone);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::size_t const bytes = values[i].bytes();
      copy_block({copies[i].data, values[i].data, bytes, bytes, bytes, 1, device, values[i].device},
                 clone->stream());
    }
  }
  for (auto const& replica : replicas) replica->stream().synchronize();
  return replicas;
}

}  // namespace ddp
