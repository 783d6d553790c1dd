// Calls into libraries that may never return.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// Runs `call` in a thread of its own and waits for it at most `longest`; throws what it throws. Returns
/// false if it has not returned by then: its thread is left to itself, so `call` must own what it uses.
[[nodiscard]] bool call_within(std::chrono::milliseconds longest, std::function<void()> call);

/// Runs `call`, which must not throw, in the calling thread. If it has not returned after `longest`, logs
/// `message`, reports it (ErrorCode::aborted) and ends the process with exit code 1, without destructors: for
/// the end of what a process cannot live on without.
void call_or_leave(std::chrono::milliseconds longest, std::function<void()> const& call,
                   ControlPlane& control, std::string const& message) noexcept;

}  // namespace ddp
