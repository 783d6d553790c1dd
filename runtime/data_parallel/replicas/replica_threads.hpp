// One thread for each replica.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "core/thread_team.hpp"
#include "ddp/core/device.hpp"

namespace ddp {

/// Threads that live between steps, each with its device current. The calling thread is replica 0's, and gets
/// its own device back after run(). One thread at a time.
class ReplicaThreads {
 public:
  /// Throws Error(not_found) for a device that is not there.
  explicit ReplicaThreads(std::vector<Device> devices);

  [[nodiscard]] std::span<Device const> devices() const noexcept { return devices_; }

  /// ThreadTeam::run(); rethrows a failure as rethrow_as() does, with "replica 2 on cuda:2: " in front.
  void run(std::size_t count, std::function<void(std::size_t replica)> const& task);

 private:
  std::vector<Device> devices_;
  ThreadTeam team_;
};

}  // namespace ddp
