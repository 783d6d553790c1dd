// What a program addresses as cuda:0, cuda:1: the devices that CUDA_VISIBLE_DEVICES leaves, in its order.
#pragma once

#include <span>
#include <string>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// One logical device and the visible GPU behind it. With DDP_VIRTUAL_DEVICES=n in the environment
/// (ddp-launch
/// --virtual n sets it) each visible GPU stands for n logical devices, neighbours in number.
struct LogicalDevice {
  Device device;           ///< cuda:index
  int visible = 0;         ///< CUDA's number of the GPU in this process
  int slice = 0;           ///< which of the GPU's logical devices this is
  std::string name;        ///< "NVIDIA H200"
  std::string uuid;        ///< "GPU-8c0f…"
  std::string pci_bus_id;  ///< "0000:06:00.0"
  int sms = 0;             ///< streaming multiprocessors
};

/// Whether this build can use GPUs at all.
[[nodiscard]] bool is_built_with_cuda() noexcept;

/// All logical GPUs of this process, by index. Empty without a driver, without a visible GPU, and in a build
/// without CUDA. The first call settles what is visible; it opens no context. Any thread.
[[nodiscard]] std::span<LogicalDevice const> logical_devices();

/// The entry of `device`. Throws Error(not_found) with what there is, or Error(invalid_argument) for a CPU.
[[nodiscard]] LogicalDevice const& logical_device(Device device);

/// What the driver says of the memory of the GPU behind `device`, all processes together.
struct MemoryInfo {
  Bytes free{0};   ///< of all processes together
  Bytes total{0};  ///< of the device
};
[[nodiscard]] MemoryInfo memory_info(Device device);

}  // namespace ddp
