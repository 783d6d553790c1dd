// What is tried with streams that may have failed: the log says what went wrong.
#pragma once

#include "ddp/device/stream.hpp"

namespace ddp {

/// As Stream::wait().
void wait_if_possible(Stream& waiting, Stream& other) noexcept;

/// As Stream::synchronize(). Whether it could be done: if not, work may still be under way.
bool synchronize_if_possible(Stream& stream) noexcept;

}  // namespace ddp
