#include "device/cuda/backend.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstring>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/queries.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "device/registry/gpu_id.hpp"

namespace ddp::cuda {
namespace {

ErrorCode code_of(cudaError_t result) noexcept {
  switch (result) {
    case cudaErrorMemoryAllocation:
      return ErrorCode::out_of_memory;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
      return ErrorCode::not_found;
    case cudaErrorNotSupported:
      return ErrorCode::unsupported;
    default:
      return ErrorCode::device;
  }
}

GpuId id_of(cudaUUID_t const& uuid) {
  std::array<unsigned char, sizeof(uuid.bytes)> bytes{};
  std::memcpy(bytes.data(), uuid.bytes, bytes.size());
  return gpu_id(bytes);
}

}  // namespace

void check(cudaError_t result, std::string_view doing, std::source_location where) {
  static_cast<void>(maker_of_contexts());
  if (result == cudaSuccess) return;
  throw Error(code_of(result), text(doing, ": ", cudaGetErrorName(result), ": ", cudaGetErrorString(result)),
              where);
}

bool is_done(cudaError_t result, std::string_view doing, std::source_location where) {
  if (result == cudaErrorNotReady) {
    if (cudaPeekAtLastError() == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
    return false;
  }
  check(result, doing, where);
  return true;
}

bool is_built() noexcept { return true; }

std::string why_no_devices() {
  int count = 0;
  cudaError_t const result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess) return "";
  static_cast<void>(cudaGetLastError());
  int driver = 0;  // the newest CUDA that it can run; 0: there is none
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "no NVIDIA driver is installed";
  return text(cudaGetErrorName(result), ": ", cudaGetErrorString(result));
}

std::vector<LogicalDevice> visible_devices() {
  int count = 0;
  if (cudaError_t const result = cudaGetDeviceCount(&count); result != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    // No driver or no GPU is usual. Anything else is worth a warning.
    bool const usual = result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver;
    log(usual ? LogLevel::debug : LogLevel::warning, text("no GPU can be used: ", why_no_devices()));
    return {};
  }
  std::vector<LogicalDevice> all;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal), text("reading the properties of GPU ", ordinal));
    std::array<char, 32> bus_id{};
    check(cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), ordinal),
          text("reading the bus id of GPU ", ordinal));
    LogicalDevice device;
    device.visible = ordinal;
    device.name = properties.name;
    device.uuid = id_of(properties.uuid);
    device.pci_bus_id = bus_id.data();
    device.sms = properties.multiProcessorCount;
    all.push_back(std::move(device));
  }
  return all;
}

MemoryInfo memory_info(int visible) {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), text("asking for the memory of GPU ", visible));
  return {Bytes{free}, Bytes{total}};
}

DeviceProperties device_properties(int visible) {
  cudaDeviceProp told{};
  check(cudaGetDeviceProperties(&told, visible), text("reading the properties of GPU ", visible));
  DeviceProperties properties;
  properties.memory = Bytes{told.totalGlobalMem};
  properties.capability = {told.major, told.minor};
  properties.multiprocessors = told.multiProcessorCount;
  properties.warp_size = told.warpSize;
  properties.max_threads_per_block = told.maxThreadsPerBlock;
  properties.shared_memory_per_block = Bytes{told.sharedMemPerBlock};
  return properties;
}

int runtime_version() noexcept {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current GPU");
  return device;
}

void set_current_device(int visible) {
  check(cudaSetDevice(visible), text("making GPU ", visible, " the current one"));
}

std::unique_ptr<Stream> make_stream(Device device, bool for_communication) {
  return std::make_unique<CudaStream>(
      device, for_communication ? CudaStream::Kind::communication : CudaStream::Kind::compute);
}

void zero_fill(TensorView const& tensor, Stream& stream) {
  OnItsDevice const on(cuda_stream(stream));
  check(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), cuda_stream(stream).handle()), "zeroing memory");
}

}  // namespace ddp::cuda
