#include "ddp/device/sm_partition.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/driver_api.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "device/stream/comm_stream_places.hpp"

namespace ddp {
namespace {

using cuda::check_driver;

// CUDA's runtime library has green contexts only since 13.1.
template <class Function>
Function* green_context_function(char const* name) {
  return cuda::driver_function<Function>(name, "setting SMs aside for communication", "12.4");
}

}  // namespace

class SmPartition::Parts {
 public:
  Parts(CUdevice device, CUdevResource communication, CUdevResource compute)
      : places_(compute.sm.smCount / communication.sm.smCount) {
    try {
      communication_ = make(device, communication);
      compute_ = make(device, compute);
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~Parts() { destroy(); }
  Parts(Parts const&) = delete;
  Parts& operator=(Parts const&) = delete;

  [[nodiscard]] CUgreenCtx communication() const noexcept { return communication_; }
  [[nodiscard]] CUgreenCtx compute() const noexcept { return compute_; }
  [[nodiscard]] CommStreamPlaces& places() noexcept { return places_; }

  /// `context`: kept alive by the stream.
  [[nodiscard]] static std::unique_ptr<Stream> make_stream(std::shared_ptr<void const> context, Device device,
                                                           CUgreenCtx where, int priority) {
    CUstream handle = nullptr;
    check_driver(green_context_function<decltype(cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate")(
                     &handle, where, CU_STREAM_NON_BLOCKING, priority),
                 text("making a stream on some SMs of ", device));
    return std::make_unique<CudaStream>(
        std::make_shared<CudaStream::State>(device, handle, true, std::move(context)));
  }

 private:
  [[nodiscard]] static CUgreenCtx make(CUdevice device, CUdevResource resource) {
    CUdevResourceDesc description = nullptr;
    check_driver(green_context_function<decltype(cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc")(
                     &description, &resource, 1),
                 "describing a set of SMs");
    CUgreenCtx context = nullptr;
    check_driver(green_context_function<decltype(cuGreenCtxCreate)>("cuGreenCtxCreate")(
                     &context, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
                 "making a green context");
    return context;
  }
  void destroy() noexcept {
    try {
      auto* const end = green_context_function<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy");
      for (auto* const context : {communication_, compute_}) {
        if (context != nullptr) static_cast<void>(end(context));
      }
    } catch (Error const&) {  // without that function there is no context
    }
  }

  CommStreamPlaces places_;
  CUgreenCtx communication_ = nullptr;
  CUgreenCtx compute_ = nullptr;
};

SmPartition::SmPartition(Device device, int communication) : device_(device) {
  DeviceGuard const guard(device);
  require(communication > 0,
          [&] { return text(communication, " SMs of ", device, " for communication, expected 1 or more"); });
  int ordinal = 0;
  cuda::check(cudaGetDevice(&ordinal), "asking for the current GPU");
  cuda::check(cudaFree(nullptr), text("opening a context on ", device));
  CUdevice handle = 0;
  check_driver(green_context_function<decltype(cuDeviceGet)>("cuDeviceGet")(&handle, ordinal),
               text("finding ", device));

  CUdevResource all{};
  check_driver(green_context_function<decltype(cuDeviceGetDevResource)>("cuDeviceGetDevResource")(
                   handle, &all, CU_DEV_RESOURCE_TYPE_SM),
               text("counting the SMs of ", device));
  CUdevResource aside{};
  CUdevResource rest{};
  unsigned int groups = 1;
  CUresult const split =
      green_context_function<decltype(cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount")(
          &aside, &groups, &all, &rest, 0, static_cast<unsigned int>(communication));
  bool const fits = split == CUDA_SUCCESS && groups == 1 && rest.sm.smCount > 0;
  if (split != CUDA_ERROR_INVALID_VALUE && split != CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION) {
    check_driver(split, text("dividing the SMs of ", device));
  }
  require(fits, [&] {
    return text(communication, " SMs of ", device, " for communication: it has ", all.sm.smCount,
                ", and some must be left to compute on");
  });
  parts_ = std::make_shared<Parts>(handle, aside, rest);
  communication_sms_ = static_cast<int>(aside.sm.smCount);
  compute_sms_ = static_cast<int>(rest.sm.smCount);
}

std::unique_ptr<Stream> SmPartition::make_comm_stream() const {
  using Place = CommStreamPlaces::Place;
  auto place = parts_->places().take();
  if (!place) {
    throw Error(ErrorCode::invalid_state,
                text("one stream for communication more than ", device_,
                     " has room for: ", 1 + compute_sms_ / communication_sms_, " of ", communication_sms_,
                     " SMs each live. Give up one of the objects that communicate, each "
                     "DistributedDataParallel has a stream, or set fewer SMs aside (DDP_COMM_SMS, "
                     "WorldOptions::comm_sms)"));
  }
  bool const aside = place->part == CommStreamPlaces::Part::aside;
  struct Context {
    std::shared_ptr<Parts> parts;
    Place place;
  };
  DeviceGuard const guard(device_);
  return Parts::make_stream(std::make_shared<Context const>(Context{parts_, std::move(*place)}), device_,
                            aside ? parts_->communication() : parts_->compute(),
                            priority_of(CudaStream::Kind::communication));
}

std::unique_ptr<Stream> SmPartition::make_compute_stream() const {
  DeviceGuard const guard(device_);
  return Parts::make_stream(parts_, device_, parts_->compute(), priority_of(CudaStream::Kind::compute));
}

}  // namespace ddp
