// The order in which CUDA counts GPUs, which is what indices in CUDA_VISIBLE_DEVICES mean.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/device/inventory.hpp"

namespace ddp {

/// UUIDs of this machine's GPUs in the order in which CUDA counts them now, whatever is visible. A child
/// process asks the driver (`library`), without a context; a GPU cut into instances counts as itself. Empty
/// where the driver does not tell in time. Takes some 100 ms.
[[nodiscard]] std::vector<GpuId> ask_cuda_order(char const* library = "libcuda.so.1",
                                                std::chrono::milliseconds timeout = std::chrono::seconds(5));

/// Whether the order of `gpus`, which is that of PCI, may differ from CUDA's (D2): CUDA counts the fastest
/// first unless CUDA_DEVICE_ORDER (`order`) is PCI_BUS_ID, and those of one model in the order of PCI.
[[nodiscard]] bool may_differ_from_cuda(std::span<PhysicalGpu const> gpus,
                                        std::optional<std::string> const& order);

/// `gpus` in the order of `uuids`; those that are not among them follow, in their order.
[[nodiscard]] std::vector<PhysicalGpu> ordered_by(std::span<GpuId const> uuids,
                                                  std::vector<PhysicalGpu> gpus);

/// UUIDs in the order in which CUDA counts these GPUs, if it may differ from theirs. Empty if it cannot
/// differ, or if the driver does not know each of them.
[[nodiscard]] std::vector<GpuId> cuda_order_of(std::span<PhysicalGpu const> gpus,
                                               std::optional<std::string> const& order,
                                               char const* library = "libcuda.so.1");

/// These GPUs as CUDA counts them in a process with CUDA_DEVICE_ORDER=`order`; in the order of `gpus` if the
/// driver does not tell. PhysicalGpu::index stays what it was.
[[nodiscard]] std::vector<PhysicalGpu> in_cuda_order(std::vector<PhysicalGpu> gpus,
                                                     std::optional<std::string> const& order);

}  // namespace ddp
