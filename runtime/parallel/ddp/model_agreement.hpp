// Whether all ranks hold replicas of one model (R9).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/reducer/parameter.hpp"

namespace ddp {

/// A line for each tensor: what it is, its name, form and layout. `own`: the rank's device.
[[nodiscard]] std::string describe_model(Device own, std::span<Parameter const> parameters,
                                         std::span<NamedTensor const> buffers);

/// Collective over `group`. Throws, on every rank alike, Error(invalid_argument) for what a rank finds wrong
/// by itself (names that stand twice, and what `check_here` throws), or CommError(mismatch) for the first
/// difference between a rank and the group's first. `own`: the device that this rank computes on; which
/// tensors lie there must be the same on every rank. Returns the devices that are used, in an order that is
/// the same on every rank.
[[nodiscard]] std::vector<Device> check_replicas(ControlPlane& control, std::string const& name,
                                                 std::span<Rank const> group, Device own,
                                                 std::span<Parameter const> parameters,
                                                 std::span<NamedTensor const> buffers,
                                                 std::function<void()> const& check_here, Deadline deadline);

}  // namespace ddp
