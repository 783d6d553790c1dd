#include "ddp/core/error.hpp"

#include <array>
#include <cstring>

#include "ddp/core/failure.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

// In the order of ErrorCode.
constexpr std::array<std::string_view, 12> kErrorNames{
    "invalid_argument", "invalid_state", "mismatch",  "timeout", "peer_lost", "aborted", "protocol", "io",
    "out_of_memory",    "unsupported",   "not_found", "device"};
static_assert(kErrorNames.size() == static_cast<std::size_t>(ErrorCode::device) + 1);

std::string_view to_string(ErrorCode code) noexcept {
  auto const index = static_cast<std::size_t>(code);
  return index < kErrorNames.size() ? kErrorNames[index] : "unknown";
}

Error::Error(ErrorCode code, std::string const& message, std::source_location where)
    : std::runtime_error(message), code_(code), where_(where) {}

CommError::CommError(Failure const& failure, std::source_location where)
    : CommError(failure, to_string(failure), where) {}

CommError::CommError(Failure const& failure, std::string const& message, std::source_location where)
    : Error(failure.code, message, where), failure_(std::make_shared<Failure const>(failure)) {}

CommError::CommError(ErrorCode code, std::string const& message, std::source_location where)
    : CommError(Failure{.code = code, .detail = message}, message, where) {}

Failure failure_of(std::exception const& error) {
  if (auto const* const ours = dynamic_cast<CommError const*>(&error)) return ours->failure();
  auto const* const known = dynamic_cast<Error const*>(&error);
  return {.code = known != nullptr ? known->code() : ErrorCode::invalid_state, .detail = error.what()};
}

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
