#include "ddp/core/error.hpp"

#include <cstring>

#include "ddp/core/text.hpp"

namespace ddp {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::invalid_state:
      return "invalid_state";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_lost:
      return "peer_lost";
    case ErrorCode::aborted:
      return "aborted";
    case ErrorCode::protocol:
      return "protocol";
    case ErrorCode::io:
      return "io";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::device:
      return "device";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string const& message, std::source_location where)
    : std::runtime_error(message), code_(code), where_(where) {}

void require(bool holds, std::string_view message, std::source_location where) {
  if (!holds) throw Error(ErrorCode::invalid_argument, std::string(message), where);
}

void throw_errno(std::string_view doing, int error_number, ErrorCode code, std::source_location where) {
  char const* name = strerrorname_np(error_number);
  char const* description = strerrordesc_np(error_number);
  throw Error(code,
              text(doing, ": ", description != nullptr ? description : "unknown error", " (",
                   name != nullptr ? name : "?", ")"),
              where);
}

}  // namespace ddp
