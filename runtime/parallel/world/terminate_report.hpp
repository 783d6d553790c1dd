// The last words of a rank that ends by an uncaught exception.
#pragma once

#include <memory>

#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// From now on an uncaught exception is told to `control` before the process ends as it would have anyway.
/// The one owner of the process's terminate handler in this library; a later call replaces `control`.
void report_uncaught_exceptions_to(std::weak_ptr<ControlPlane> control);

}  // namespace ddp
