// Names of GPUs in lists such as CUDA_VISIBLE_DEVICES and --gpus, read as CUDA reads them. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/device/inventory.hpp"

namespace ddp {

/// What stands between the commas of `list`; at least one entry, which may be empty. Points into `list`.
[[nodiscard]] std::vector<std::string_view> entries_of(std::string_view list);

/// "GPU-8c0f37a5-…", as nvidia-smi writes what the driver has as 16 bytes.
[[nodiscard]] GpuId gpu_id(std::array<unsigned char, 16> const& bytes);

/// Whether it begins as a UUID of a GPU or a MIG instance does.
[[nodiscard]] bool is_device_id(std::string_view entry);

inline constexpr std::size_t kIdPrefix = 4;  ///< letters of "GPU-" and of "MIG-"

/// The digits of an id or the beginning of one, in lower case. CUDA skips dashes wherever they stand and
/// stops after 32 digits. nullopt where something else comes before that.
[[nodiscard]] std::optional<std::string> id_digits(std::string_view id);

/// The ids among `ids` that `entry`, an id or the beginning of one with at least one digit, may mean.
[[nodiscard]] std::vector<GpuId> devices_named(std::string_view entry, std::span<GpuId const> ids);

}  // namespace ddp
