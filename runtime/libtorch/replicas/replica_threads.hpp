// One thread for each replica of a torch module.
#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ddp/core/device.hpp"

namespace ddp::libtorch {

/// Threads that live between passes: the calling one is replica 0's. at::parallel_for() would not do: it runs
/// replicas one after another where PyTorch has one thread, and does not pass on what the caller has set.
class ReplicaThreads {
 public:
  /// `places` are PyTorch's names of `devices`.
  ReplicaThreads(std::vector<Device> devices, std::vector<c10::Device> places);
  ~ReplicaThreads();
  ReplicaThreads(ReplicaThreads const&) = delete;
  ReplicaThreads& operator=(ReplicaThreads const&) = delete;

  [[nodiscard]] std::vector<Device> const& devices() const noexcept { return devices_; }
  [[nodiscard]] std::vector<c10::Device> const& places() const noexcept { return places_; }

  /// Throws Error(invalid_state) inside of a task of any ReplicaThreads: its threads would wait for
  /// themselves, and several of them would call the same object.
  static void refuse_nesting();

  /// Calls task(i) for every replica below `count`, each in its thread, with its device current, the calling
  /// thread's settings and its current stream of every GPU, so that copies which the caller enqueues before
  /// and after are in order with it. Returns when all have returned. It has no deadline of its own: what
  /// tasks wait for has one. If some threw, throws what the one of the lowest index did, with "replica 2 on
  /// cuda:2: " in front: a CommError as such, another ddp::Error with its code, anything else as
  /// Error(invalid_state); the original is nested in it. Not inside of a task.
  void run(std::size_t count, std::function<void(std::size_t replica)> const& task);

 private:
  struct Round;
  void stop();
  void work(std::size_t replica);
  void run_one(std::size_t replica, Round const& round);

  std::vector<Device> devices_;
  std::vector<c10::Device> places_;
  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  Round const* round_ = nullptr;
  std::size_t rounds_ = 0;
  std::size_t working_ = 0;
  bool stopping_ = false;
  std::vector<std::exception_ptr> errors_;  // by replica, written by its thread
  std::vector<std::thread> threads_;        // of replica 1, 2, …
};

}  // namespace ddp::libtorch
