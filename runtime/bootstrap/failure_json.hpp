// A failure's fields as JSON, in error files and events.
#pragma once

#include <optional>
#include <string>

#include "ddp/core/failure.hpp"

namespace ddp {

/// An object with "code", "message" (the sentence), "manner", and of "ranks", "host", "status", "operation",
/// "by", "waited_ms", "detail" and "ended_by" those that are known.
[[nodiscard]] std::string failure_json(Failure const& failure);

/// Reads what failure_json() writes. If an object has nothing but a message, as another program may write it,
/// that becomes the failure's detail. nullopt for no object, and for a field of the wrong type.
[[nodiscard]] std::optional<Failure> read_failure_json(std::string const& words);

}  // namespace ddp
