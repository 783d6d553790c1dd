#include "ddp/data_parallel/replicate.hpp"

#include <utility>

#include "data_parallel/replicas/clone.hpp"
#include "data_parallel/replicas/replica_devices.hpp"

namespace ddp {

std::vector<std::shared_ptr<Module>> replicate(std::shared_ptr<Module> module,
                                               std::span<Device const> devices) {
  require(module != nullptr, "replicate: a module is needed, found none");
  require(!devices.empty(), "replicate: at least one device is needed, found none");
  check_devices(devices);
  check_module_device(*module, devices);
  std::vector<std::shared_ptr<Module>> replicas{std::move(module)};
  for (Device const device : devices.subspan(1)) {
    replicas.push_back(checked_clone(*replicas[0], device));
    copy_values(*replicas[0], *replicas.back());
  }
  for (auto const& replica : replicas) replica->stream().synchronize();
  return replicas;
}

}  // namespace ddp
