// The last words of a rank that ends by an uncaught exception.
#pragma once

#include <memory>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/error.hpp"

namespace ddp {

/// A value in the environment with which no rank can start.
class BadEnvironment : public Error {
 public:
  explicit BadEnvironment(Error const& error) : Error(error) {}
};

/// From now on a program that does not catch a BadEnvironment ends with one line and exit code 64 (EX_USAGE),
/// not by abort(): the error is its user's. The one owner of the process's terminate handler in this library.
void handle_uncaught_exceptions();

/// What `read` returns. Its Error(invalid_argument) or Error(unsupported) becomes a BadEnvironment.
template <class Read>
auto read_environment(Read const& read) {
  handle_uncaught_exceptions();
  try {
    return read();
  } catch (Error const& error) {
    if (error.code() != ErrorCode::invalid_argument && error.code() != ErrorCode::unsupported) throw;
    throw BadEnvironment(error);
  }
}

/// From now on an uncaught exception is told to `control` before the process ends as it would have anyway.
/// A later call replaces `control`.
void report_uncaught_exceptions_to(std::weak_ptr<ControlPlane> control);

}  // namespace ddp
