// Whether all ranks hold replicas of one model (R9).
#pragma once

#include <span>
#include <string>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/reducer/parameter.hpp"

namespace ddp {

/// Collective over `group`. Throws, on every rank alike, CommError(mismatch) for the first difference between
/// a rank and the group's first; Error(invalid_argument) for a name that stands twice.
void check_replicas(ControlPlane& control, std::string const& name, std::span<Rank const> group,
                    std::span<Parameter const> parameters, std::span<Buffer const> buffers,
                    Deadline deadline);

}  // namespace ddp
