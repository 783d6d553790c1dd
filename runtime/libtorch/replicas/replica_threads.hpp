// One thread for each replica of a torch module.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "core/thread_team.hpp"
#include "ddp/core/device.hpp"

namespace ddp::libtorch {

/// Threads that live between passes: the calling one is replica 0's. at::parallel_for() does not fit: it runs
/// replicas one after another if PyTorch has one thread, and does not pass on the caller's settings.
class ReplicaThreads {
 public:
  /// `places` are PyTorch's names of `devices`.
  ReplicaThreads(std::vector<Device> devices, std::vector<c10::Device> places);

  [[nodiscard]] std::vector<Device> const& devices() const noexcept { return devices_; }
  [[nodiscard]] std::vector<c10::Device> const& places() const noexcept { return places_; }

  /// Throws Error(invalid_state) inside of a task of any ReplicaThreads: its threads would wait for
  /// themselves, and several of them would call the same object.
  static void refuse_nesting();

  /// ThreadTeam::run(), where each thread has its device current, the calling thread's settings and its
  /// current stream of every GPU, so that copies which the caller enqueues before and after are in order with
  /// it. Rethrows a failure as rethrow_as() does, with "replica 2 on cuda:2: " in front.
  void run(std::size_t count, std::function<void(std::size_t replica)> const& task);

 private:
  std::vector<Device> devices_;
  std::vector<c10::Device> places_;
  ThreadTeam team_;
};

}  // namespace ddp::libtorch
