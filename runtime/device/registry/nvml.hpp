// NVML, loaded at run time. The declarations are our own, since its header is often absent; names and numbers
// are those of NVIDIA's NVML API reference.
#pragma once

#include <array>
#include <memory>
#include <string>

namespace ddp::nvml {

enum class Result : int {
  success = 0,
  not_supported = 3,
  no_permission = 4,
  not_found = 6,
  insufficient_size = 7,
};

struct OpaqueDevice;
using Device = OpaqueDevice*;  ///< a GPU or a MIG instance; belongs to the library

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  std::array<char, 32> bus_id;
};

/// For nvmlDeviceGetComputeRunningProcesses_v2: the structure of _v3 has had two sizes under one name.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance_id;
  unsigned compute_instance_id;
};

/// What a P2P status is asked for.
enum class P2pCapability : unsigned { read = 0, write = 1, nvlink = 2 };
/// 0: yes; the others are reasons why not.
inline constexpr unsigned kP2pOk = 0;
inline constexpr unsigned kP2pUnknown = 6;

inline constexpr unsigned kTextSize = 96;  ///< what NVML asks for UUIDs and names; versions need 80

struct Functions {
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  char const* (*error_string)(Result) = nullptr;
  Result (*driver_version)(char* text, unsigned size) = nullptr;
  Result (*device_count)(unsigned* count) = nullptr;
  Result (*device_by_index)(unsigned index, Device* device) = nullptr;
  Result (*uuid)(Device, char* text, unsigned size) = nullptr;
  Result (*name)(Device, char* text, unsigned size) = nullptr;
  Result (*pci_info)(Device, PciInfo* info) = nullptr;
  Result (*memory_info)(Device, Memory* memory) = nullptr;
  Result (*compute_capability)(Device, int* major, int* minor) = nullptr;
  // Drivers before 450 lack these: null then.
  Result (*max_mig_devices)(Device, unsigned* count) = nullptr;
  Result (*mig_device_by_index)(Device, unsigned index, Device* instance) = nullptr;
  Result (*compute_processes)(Device, unsigned* count, ProcessInfo* processes) = nullptr;
  Result (*cuda_version)(int* version) = nullptr;  ///< 1000 x major + 10 x minor
  Result (*p2p_status)(Device, Device, P2pCapability, unsigned* status) = nullptr;
};

/// The library, loaded and initialised for as long as this lives.
class Library {
 public:
  /// Throws Error(not_found) where `file` cannot be loaded, Error(unsupported) where it lacks a function or
  /// refuses to start, with its own words.
  explicit Library(char const* file);
  ~Library();
  Library(Library const&) = delete;
  Library& operator=(Library const&) = delete;

  [[nodiscard]] Functions const* operator->() const noexcept { return &functions_; }
  /// "Insufficient Permissions (4)".
  [[nodiscard]] std::string describe(Result result) const;

 private:
  std::unique_ptr<void, int (*)(void*)> handle_;
  Functions functions_;
};

}  // namespace ddp::nvml
