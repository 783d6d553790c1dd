// One thread for each replica.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ddp/core/device.hpp"

namespace ddp {

/// Threads that live between steps, each with its device current. The calling thread is replica 0's, and gets
/// its own device back after run(). One thread at a time.
class ReplicaThreads {
 public:
  /// Throws Error(not_found) for a device that is not there.
  explicit ReplicaThreads(std::vector<Device> devices);
  ~ReplicaThreads();
  ReplicaThreads(ReplicaThreads const&) = delete;
  ReplicaThreads& operator=(ReplicaThreads const&) = delete;

  [[nodiscard]] std::span<Device const> devices() const noexcept { return devices_; }

  /// Calls task(i) for every replica below `count`, each in its thread, and returns when all have returned.
  /// It has no deadline of its own: what tasks wait for has one. If some threw, throws what the one of the
  /// lowest index did, with "replica 2 on cuda:2: " in front: a CommError as such, another ddp::Error with
  /// its code, anything else as Error(invalid_state); the original is nested in it.
  void run(std::size_t count, std::function<void(std::size_t replica)> const& task);

 private:
  void stop();
  void work(std::size_t replica);
  void run_one(std::size_t replica);

  std::vector<Device> devices_;
  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  std::function<void(std::size_t)> const* task_ = nullptr;
  std::size_t count_ = 0;
  std::size_t round_ = 0;
  std::size_t working_ = 0;
  bool stopping_ = false;
  std::vector<std::exception_ptr> errors_;  // by replica, written by its thread
  std::vector<std::thread> threads_;        // of replica 1, 2, …
};

}  // namespace ddp
