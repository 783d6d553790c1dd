// One thread for each replica. It has no .cpp, since ddp::libtorch includes it too.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/thread_team.hpp"
#include "ddp/core/device.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {

/// Threads that live between steps, each with its device current. The calling thread is replica 0's, and gets
/// its own device back after run(). One thread at a time.
class ReplicaThreads {
 public:
  /// Throws Error(not_found) for a device that is not there.
  explicit ReplicaThreads(std::vector<Device> devices)
      : devices_(std::move(devices)), team_(devices_.size()) {
    for (Device const device : devices_) DeviceGuard const there(device);
  }

  [[nodiscard]] std::vector<Device> const& devices() const noexcept { return devices_; }

  /// ThreadTeam::run(); rethrows a failure by `rethrow`, with "replica 2 on cuda:2: " in front.
  void run(std::size_t count, std::function<void(std::size_t replica)> const& task,
           void (*rethrow)(std::string const& who, std::exception_ptr const& error) = rethrow_as) {
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
    if (failure)
      rethrow(text("replica ", failure->member, " on ", devices_[failure->member], ": "), failure->error);
  }

 private:
  std::vector<Device> devices_;
  ThreadTeam team_;
};

}  // namespace ddp
