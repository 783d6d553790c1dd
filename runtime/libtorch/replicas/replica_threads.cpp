#include "libtorch/replicas/replica_threads.hpp"

#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

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

// As ddp::rethrow_as(), but with PyTorch's errors without their backtraces.
[[noreturn]] void rethrow_torch_error(std::string const& replica, std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (c10::OutOfMemoryError const& original) {
    std::throw_with_nested(Error(ErrorCode::out_of_memory, replica + original.what_without_backtrace()));
  } catch (c10::Error const& original) {
    std::throw_with_nested(Error(ErrorCode::invalid_state, replica + original.what_without_backtrace()));
  } catch (...) {
    rethrow_as(replica, error);
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(std::vector<Device> devices, std::vector<c10::Device> places)
    : devices_(std::move(devices)), places_(std::move(places)), team_(devices_.size()) {}

void ReplicaThreads::refuse_nesting() {
  if (!in_replica) return;
  throw Error(ErrorCode::invalid_state,
              "DataParallel is called inside of a replica of another one, or of itself, whose devices are "
              "busy with its passes: wrap only the outermost module");
}

void ReplicaThreads::run(std::size_t count, std::function<void(std::size_t)> const& task) {
  at::ThreadLocalState const settings;
  std::vector<c10::Stream> const streams = current_streams(places_);
  auto const in_place = [&](std::size_t replica) {
    InReplica const inside;
    // Gives a thread of its own the GPU's context, which PyTorch leaves out for GPU 0.
    if (replica > 0) set_device(devices_[replica]);
    c10::OptionalDeviceGuard place;
    if (!places_[replica].is_cpu()) place.reset_device(places_[replica]);
    if (replica == 0) {
      task(replica);
      return;
    }
    at::ThreadLocalStateGuard const guard(settings);
    for (c10::Stream const stream : streams) {
      c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
    }
    task(replica);
  };
  auto const failure = team_.run(count, std::ref(in_place));
  if (!failure) return;
  rethrow_torch_error(text("replica ", failure->member, " on ", devices_[failure->member], ": "),
                      failure->error);
}

}  // namespace ddp::libtorch
