// CUDA_VISIBLE_DEVICES as CUDA reads it. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/device/inventory.hpp"

namespace ddp {

/// What CUDA would enumerate for this value of CUDA_VISIBLE_DEVICES, as UUIDs in logical order (D2). `gpus`
/// stand in CUDA's order, which indices count. nullopt (unset) is all; an entry that is no device ends the
/// list there; a repeated device leaves none. The rules, down to what happens to "0x1" and " 1", are those
/// that CUDA 13's driver showed when asked.
[[nodiscard]] std::vector<GpuId> read_cuda_visible_devices(std::optional<std::string> const& value,
                                                           std::span<PhysicalGpu const> gpus);

/// The same, with GPUs in MIG mode replaced by their instances: CUDA sees only those.
[[nodiscard]] std::vector<GpuId> visible_device_ids(std::optional<std::string> const& value,
                                                    std::span<PhysicalGpu const> gpus);

/// Whether its first entry is the id or the index of a GPU, whatever GPUs there are: "" and "-1" name none.
[[nodiscard]] bool names_gpus(std::string const& value);

}  // namespace ddp
