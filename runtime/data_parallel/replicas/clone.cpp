#include "data_parallel/replicas/clone.hpp"

#include "ddp/core/text.hpp"
#include "ddp/device/device_placement.hpp"
#include "device/memory/block_copy.hpp"
#include "reducer/placement_log.hpp"

namespace ddp {

std::vector<TensorView> values_of(Module& module) {
  std::vector<TensorView> all;
  for (Parameter const& parameter : module.parameters()) all.push_back(parameter.value);
  for (NamedTensor const& buffer : module.buffers()) all.push_back(buffer.value);
  return all;
}

void log_placements(std::string_view whose, Module& module) {
  if (!log_device_placement()) return;  // making the lists is work of the module
  log_placements(whose, module.parameters(), module.buffers());
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

void copy_values(Module& from, Module& to) {
  Stream& stream = to.device().kind == DeviceKind::cuda ? to.stream() : from.stream();
  to.stream().wait(from.stream());
  auto const values = values_of(from);
  auto const copies = values_of(to);
  for (std::size_t i = 0; i < values.size(); ++i) copy_whole(copies[i], values[i], stream);
}

std::shared_ptr<Module> Module::to(Device device) {
  std::shared_ptr<Module> copy = checked_clone(*this, place_device(device));
  copy_values(*this, *copy);
  stream().synchronize();
  copy->stream().synchronize();
  return copy;
}

}  // namespace ddp
