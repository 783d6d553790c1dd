#include "libtorch/replicas/replica_threads.hpp"

#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp::libtorch {
namespace {

thread_local bool in_replica = false;

class InReplica {
 public:
  InReplica() { in_replica = true; }
  ~InReplica() { in_replica = false; }
  InReplica(InReplica const&) = delete;
  InReplica& operator=(InReplica const&) = delete;
};

// The calling thread's current stream of each GPU.
std::vector<c10::Stream> current_streams(std::vector<c10::Device> const& places) {
  std::vector<c10::Stream> streams;
  for (c10::Device const place : places) {
    if (!place.is_cpu()) streams.push_back(c10::impl::VirtualGuardImpl(place.type()).getStream(place));
  }
  return streams;
}

// Throws what `error` is, named after its replica, with the original nested.
[[noreturn]] void rethrow_as(std::string const& replica, std::exception_ptr const& error) {
  auto const refuse = [&](ErrorCode code, char const* what) {
    std::throw_with_nested(Error(code, replica + what));
  };
  try {
    std::rethrow_exception(error);
  } catch (CommError const& original) {
    std::throw_with_nested(CommError(original.code(), replica + original.what(), original.where()));
  } catch (Error const& original) {
    std::throw_with_nested(Error(original.code(), replica + original.what(), original.where()));
  } catch (c10::OutOfMemoryError const& original) {
    refuse(ErrorCode::out_of_memory, original.what_without_backtrace());
  } catch (c10::Error const& original) {
    refuse(ErrorCode::invalid_state, original.what_without_backtrace());
  } catch (std::bad_alloc const& original) {
    refuse(ErrorCode::out_of_memory, original.what());
  } catch (std::exception const& original) {
    refuse(ErrorCode::invalid_state, original.what());
  } catch (...) {
    refuse(ErrorCode::invalid_state, "it threw something that is no std::exception");
  }
  std::terminate();  // not reached: each of them throws
}

}  // namespace

struct ReplicaThreads::Round {
  std::function<void(std::size_t)> const* task = nullptr;
  std::size_t count = 0;
  at::ThreadLocalState settings;
  std::vector<c10::Stream> streams;
};

ReplicaThreads::ReplicaThreads(std::vector<Device> devices, std::vector<c10::Device> places)
    : devices_(std::move(devices)), places_(std::move(places)), errors_(devices_.size()) {
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

void ReplicaThreads::run_one(std::size_t replica, Round const& round) {
  try {
    InReplica const inside;
    // Gives a thread of its own the GPU's context, which PyTorch leaves out for GPU 0.
    if (replica > 0) set_device(devices_[replica]);
    c10::OptionalDeviceGuard place;
    if (!places_[replica].is_cpu()) place.reset_device(places_[replica]);
    if (replica == 0) {
      (*round.task)(replica);
      return;
    }
    at::ThreadLocalStateGuard const settings(round.settings);
    for (c10::Stream const stream : round.streams) {
      c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
    }
    (*round.task)(replica);
  } catch (...) {
    errors_[replica] = std::current_exception();
  }
}

void ReplicaThreads::work(std::size_t replica) {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begin_.wait(lock, [&] { return stopping_ || rounds_ != seen; });
    if (stopping_) return;
    seen = rounds_;
    // Null: the round ended before this thread, which had no part in it, saw it.
    Round const* const round = round_;
    if (round == nullptr || replica >= round->count) continue;
    lock.unlock();
    run_one(replica, *round);
    lock.lock();
    if (--working_ == 0) end_.notify_all();
  }
}

void ReplicaThreads::refuse_nesting() {
  if (!in_replica) return;
  throw Error(ErrorCode::invalid_state,
              "DataParallel is called inside of a replica of another one, or of itself, whose devices are "
              "busy with its passes: wrap only the outermost module");
}

void ReplicaThreads::run(std::size_t count, std::function<void(std::size_t)> const& task) {
  Round const round{&task, count, at::ThreadLocalState(), current_streams(places_)};
  {
    std::lock_guard const lock(mutex_);
    round_ = &round;
    working_ = count - 1;
    ++rounds_;
  }
  if (count > 1) begin_.notify_all();
  run_one(0, round);
  {
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return working_ == 0; });
    round_ = nullptr;
  }
  auto const first =
      std::find_if(errors_.begin(), errors_.end(), [](auto const& error) { return error != nullptr; });
  if (first == errors_.end()) return;
  auto const replica = static_cast<std::size_t>(first - errors_.begin());
  std::exception_ptr const error = *first;
  std::fill(errors_.begin(), errors_.end(), nullptr);
  rethrow_as(text("replica ", replica, " on ", devices_[replica], ": "), error);
}

}  // namespace ddp::libtorch
