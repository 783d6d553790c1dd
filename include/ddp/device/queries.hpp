// Questions about devices and libraries, in one header. Related functions are elsewhere: is_built_with_cuda()
// and the lists of devices, set_device(), memory_stats() and empty_cache(), manual_seed() and
// manual_seed_all().
#pragma once

#include <string>

#include "ddp/core/export.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/random.hpp"

namespace DDP_EXPORT ddp {

// Nothing here makes a CUDA context. Functions that need the list of GPUs fix what is visible, as
// list_logical_devices() does. Any thread.

/// Whether this process can compute on a GPU: the build has CUDA, a driver is there, and a GPU is visible.
[[nodiscard]] bool cuda_is_available();

/// How many logical devices of that kind there are; at least 1 for CPUs.
[[nodiscard]] int device_count(DeviceKind kind = DeviceKind::cuda);

/// The calling thread's current device: that of its last set_device() or living DeviceGuard; otherwise the
/// logical GPU that CUDA calls current (the first of its slices), or cpu:0 without a GPU. To choose what a
/// program runs on, prefer visibility (CUDA_VISIBLE_DEVICES, ddp-launch --gpus): set_device() changes what is
/// current for one thread, and hides nothing.
[[nodiscard]] Device current_device();

/// "NVIDIA H200"; "CPU". Throws Error(not_found) for a device that is not there, as all below.
[[nodiscard]] std::string device_name(Device device);

/// The architecture for which code of a GPU is compiled: 9.0 is sm_90.
struct ComputeCapability {
  int major = 0;  ///< 9 of sm_90
  int minor = 0;  ///< 0 of sm_90
  /// By major, then by minor.
  friend constexpr auto operator<=>(ComputeCapability const&, ComputeCapability const&) noexcept = default;
};
/// Throws Error(invalid_argument) for a CPU.
[[nodiscard]] ComputeCapability device_capability(Device device);

/// Properties that do not change.
struct DeviceProperties {
  std::string name;                  ///< as device_name()
  GpuId uuid;                        ///< empty for a CPU
  std::string pci_bus_id;            ///< empty for a CPU
  Bytes memory{0};                   ///< all it has; of a CPU, what this machine or container has
  ComputeCapability capability;      ///< 0.0 for a CPU
  int multiprocessors = 0;           ///< of a GPU; of a CPU, the CPUs that this process may run on
  int warp_size = 0;                 ///< threads; 0 for a CPU
  int max_threads_per_block = 0;     ///< 0 for a CPU
  Bytes shared_memory_per_block{0};  ///< without opting in to more; 0 for a CPU
};
/// The properties of `device`.
[[nodiscard]] DeviceProperties device_properties(Device device);

/// Whether CUDA has been initialised in this process, by anybody. Initialises nothing.
[[nodiscard]] bool cuda_is_initialized() noexcept;

/// Whether cuDNN would take a tensor.
struct CudnnAnswer {
  bool accepted = false;                                                      ///< the answer
  std::string reason;                                                         ///< why not; empty if it would
  [[nodiscard]] explicit operator bool() const noexcept { return accepted; }  ///< The answer.
};
/// The tensor must lie on a GPU and be of f16, f32, f64 or (since 8.1) bf16, and cuDNN must be there: if the
/// rest is right, it is loaded, and stays loaded.
[[nodiscard]] CudnnAnswer cudnn_would_accept(TensorView const& tensor);

/// Versions of what this process uses; empty where it is not there.
struct LibraryVersions {
  std::string driver;        ///< of the GPUs: "580.82.07"
  std::string cuda_driver;   ///< the newest CUDA that the driver runs: "13.0"
  std::string cuda_runtime;  ///< that this library was built with: "13.0"
  std::string nccl;          ///< "2.28.9"; loads it, in builds with CUDA
  std::string cudnn;         ///< "9.3.0"; loads it
  std::string mpi;           ///< "Open MPI 4.1.4"
};
/// Asks the libraries that are loaded in this process, NVML, and cuDNN and NCCL, which it loads. `ddp-launch
/// --list-devices` asks in child processes instead.
[[nodiscard]] LibraryVersions library_versions();

}  // namespace ddp
