// Which GPUs: --gpus, checked strictly, and what is odd about CUDA_VISIBLE_DEVICES. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/registry/cuda_visible_devices.hpp"

namespace ddp::launcher {

/// Says that CUDA_VISIBLE_DEVICES, `value`, has more entries than the `visible` devices that it left. nullopt
/// where all entries count, and where it hides devices on purpose (an empty value, "-1", "NoDevFiles").
[[nodiscard]] std::optional<std::string> oddity(std::string const& value, std::size_t visible);

/// The GPUs that --gpus names, as UUIDs in the order given: "all", indices into `visible`, UUIDs, MIG ids, or
/// unique beginnings of those. Only messages use `inherited` (CUDA_VISIBLE_DEVICES) and `trouble` (why GPUs
/// may be missing). Throws ExitError(64) for what is no list (bad tokens, duplicates, a mixture with "all")
/// and ExitError(69) for a device that is not visible, naming the token and what is visible. Never returns a
/// part of the list.
[[nodiscard]] std::vector<GpuId> select_gpus(std::string_view list, std::span<GpuId const> visible,
                                             std::optional<std::string> const& inherited,
                                             std::string const& trouble = {});

}  // namespace ddp::launcher
