// A device map as a pure function of what there is.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/device/device_map.hpp"

namespace ddp {

/// The limits of the virtual devices of a GPU or MIG instance, by its UUID; one nullopt where it is not cut.
using LimitsOf = std::function<std::vector<std::optional<Bytes>>(std::string const& uuid)>;

/// `visible` are UUIDs in logical order, all of them among `gpus`; `cpus` the limits of the CPU's virtual
/// devices.
[[nodiscard]] DeviceMap map_devices(std::span<PhysicalGpu const> gpus, std::span<std::string const> visible,
                                    LimitsOf const& limits_of, std::span<std::optional<Bytes> const> cpus);

}  // namespace ddp
