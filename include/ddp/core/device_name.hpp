// Devices by name, as programs and command lines write them.
#pragma once

#include <optional>
#include <string_view>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// What a name says.
struct DeviceName {
  Device device;             ///< the logical device
  std::optional<Rank> rank;  ///< its rank; nullopt if the name has none
};

/// Reads "cpu", "cpu:0", "cuda", "cuda:1", and TensorFlow's "/cpu:0", "/GPU:0", "/device:GPU:1" and
/// "/job:localhost/replica:0/task:3/device:GPU:1", whose task is the rank. Does not check whether the device
/// exists. Throws Error(invalid_argument) for anything else, quoting it and showing the forms.
[[nodiscard]] DeviceName parse_device_name(std::string_view name);

/// The device of a name without a rank. Throws as parse_device_name(), and for a name with one.
[[nodiscard]] Device parse_device(std::string_view name);

}  // namespace ddp
