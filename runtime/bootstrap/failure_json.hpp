// A failure's fields as JSON, in error files and events.
#pragma once

#include <optional>
#include <string>

#include "ddp/core/failure.hpp"

namespace ddp {

/// An object with "code", "message" (the sentence), "manner", and of "ranks", "host", "status", "operation",
/// "by", "waited_ms", "detail" and "ended_by" those that are known.
[[nodiscard]] std::string failure_json(Failure const& failure);

/// The failure whose fields these are. Of an object with nothing but a message, which another program may
/// have written, that is its detail. nullopt for no object, and where a field is of another kind.
[[nodiscard]] std::optional<Failure> read_failure_json(std::string const& words);

}  // namespace ddp
