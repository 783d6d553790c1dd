#include "data_parallel/replicas/replica_threads.hpp"

#include <optional>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {
namespace {

std::vector<Device> reachable(std::vector<Device> devices) {
  for (Device const device : devices) DeviceGuard const there(device);
  return devices;
}

}  // namespace

ReplicaThreads::ReplicaThreads(std::vector<Device> devices)
    : devices_(reachable(std::move(devices))), team_(devices_.size()) {}

void ReplicaThreads::run(std::size_t count, std::function<void(std::size_t)> const& task) {
  require(count <= devices_.size(),
          [&] { return text(count, " replicas on ", devices_.size(), " devices"); });
  auto const on_device = [&](std::size_t replica) {
    std::optional<DeviceGuard> guard;
    if (replica == 0) {
      guard.emplace(devices_[0]);
    } else {
      set_device(devices_[replica]);
    }
    task(replica);
  };
  auto const failure = team_.run(count, std::ref(on_device));
  if (!failure) return;
  rethrow_as(text("replica ", failure->member, " on ", devices_[failure->member], ": "), failure->error);
}

}  // namespace ddp
