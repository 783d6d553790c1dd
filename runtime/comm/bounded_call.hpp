// Calls into libraries that may never return.
#pragma once

#include <chrono>
#include <functional>

namespace ddp {

/// Runs `call` in a thread of its own and waits for it at most `longest`; throws what it throws. Returns
/// false if it has not returned by then: its thread is left to itself, so `call` must own what it uses.
[[nodiscard]] bool call_within(std::chrono::milliseconds longest, std::function<void()> call);

}  // namespace ddp
