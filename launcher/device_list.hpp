// Which GPUs: CUDA_VISIBLE_DEVICES as CUDA reads it, and --gpus, judged strictly. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/device/inventory.hpp"

namespace ddp::launcher {

/// What CUDA would enumerate for this value of CUDA_VISIBLE_DEVICES, as UUIDs in logical order.
/// nullopt (unset) is all; an entry that is no device ends the list there; a repeated device leaves none.
/// The rules, down to what happens to "0x1" and " 1", are those that CUDA 13's driver showed when asked.
[[nodiscard]] std::vector<std::string> read_cuda_visible_devices(std::optional<std::string> const& value,
                                                                 std::span<PhysicalGpu const> gpus);

/// What is odd about a value of CUDA_VISIBLE_DEVICES that left `visible` devices: it has more entries than
/// that. nullopt where all count, and where it hides devices on purpose (an empty value, "-1", "NoDevFiles").
[[nodiscard]] std::optional<std::string> oddity(std::string const& value, std::size_t visible);

/// The GPUs that --gpus names, as UUIDs in the order given: "all", indices into `visible`, UUIDs, MIG ids, or
/// unique beginnings of those. `inherited` is CUDA_VISIBLE_DEVICES, for messages.
/// Throws ExitError(64) for what is no list (bad tokens, duplicates, a mixture with "all") and ExitError(69)
/// for a device that is not visible, naming the token and what is visible. Never gives a part of the list.
[[nodiscard]] std::vector<std::string> select_gpus(std::string_view list,
                                                   std::span<std::string const> visible,
                                                   std::optional<std::string> const& inherited);

}  // namespace ddp::launcher
