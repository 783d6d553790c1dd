// Logical devices and the device map as pure functions of what there is.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ddp/device/device_map.hpp"

namespace ddp {

/// The limits of the virtual devices of a GPU or MIG instance, by its UUID; one nullopt where it is not cut.
using LimitsOf = std::function<std::vector<std::optional<Bytes>>(GpuId const& uuid)>;

/// Appends the logical devices that `whole` is cut into, one for each limit. They are numbered on from the
/// last of `all`, if that is of the same kind.
void add_slices(std::vector<LogicalDevice>& all, LogicalDevice whole,
                std::span<std::optional<Bytes> const> limits);

/// `visible` are UUIDs in logical order, all of them among `gpus`; `cpus` the limits of the CPU's virtual
/// devices.
[[nodiscard]] DeviceMap map_devices(std::span<PhysicalGpu const> gpus, std::span<GpuId const> visible,
                                    LimitsOf const& limits_of, std::span<std::optional<Bytes> const> cpus);

}  // namespace ddp
