#include "data_parallel/replicas/replica_threads.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {
namespace {

// Throws what `error` is, named after its replica, with the original nested.
[[noreturn]] void rethrow_as(std::string const& replica, std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (CommError const& original) {
    std::throw_with_nested(CommError(original.code(), replica + original.what(), original.where()));
  } catch (Error const& original) {
    std::throw_with_nested(Error(original.code(), replica + original.what(), original.where()));
  } catch (std::bad_alloc const& original) {
    std::throw_with_nested(Error(ErrorCode::out_of_memory, replica + original.what()));
  } catch (std::exception const& original) {
    std::throw_with_nested(Error(ErrorCode::invalid_state, replica + original.what()));
  } catch (...) {
    std::throw_with_nested(
        Error(ErrorCode::invalid_state, replica + "it threw something that is no std::exception"));
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(std::vector<Device> devices)
    : devices_(std::move(devices)), errors_(devices_.size()) {
  for (Device const device : devices_) DeviceGuard const there(device);
  try {
    for (std::size_t i = 1; i < devices_.size(); ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {  // no thread left to be had: those that have started must end first
    stop();
    throw;
  }
}

ReplicaThreads::~ReplicaThreads() { stop(); }

void ReplicaThreads::stop() {
  {
    std::lock_guard const lock(mutex_);
    stopping_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReplicaThreads::run_one(std::size_t replica) {
  try {
    std::optional<DeviceGuard> guard;
    if (replica == 0) {
      guard.emplace(devices_[0]);
    } else {
      set_device(devices_[replica]);
    }
    (*task_)(replica);
  } catch (...) {
    errors_[replica] = std::current_exception();
  }
}

void ReplicaThreads::work(std::size_t replica) {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begin_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    if (replica >= count_) continue;
    lock.unlock();
    run_one(replica);
    lock.lock();
    if (--working_ == 0) end_.notify_all();
  }
}

void ReplicaThreads::run(std::size_t count, std::function<void(std::size_t)> const& task) {
  require(count <= devices_.size(),
          [&] { return text(count, " replicas on ", devices_.size(), " devices"); });
  if (count == 0) return;
  {
    std::lock_guard const lock(mutex_);
    task_ = &task;
    count_ = count;
    working_ = count - 1;
    ++round_;
  }
  if (count > 1) begin_.notify_all();
  run_one(0);
  {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return working_ == 0; });
    task_ = nullptr;
  }
  auto const first =
      std::find_if(errors_.begin(), errors_.end(), [](auto const& error) { return error != nullptr; });
  if (first == errors_.end()) return;
  auto const replica = static_cast<std::size_t>(first - errors_.begin());
  std::exception_ptr const error = *first;
  std::fill(errors_.begin(), errors_.end(), nullptr);
  rethrow_as(text("replica ", replica, " on ", devices_[replica], ": "), error);
}

}  // namespace ddp
