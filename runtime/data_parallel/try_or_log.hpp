// What is tried with streams that may have failed: the log says what went wrong.
#pragma once

#include <exception>

#include "ddp/core/log.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// As Stream::wait().
inline void wait_if_possible(Stream& waiting, Stream& other) noexcept {
  try {
    waiting.wait(other);
  } catch (std::exception const& error) {
    log(LogLevel::debug, error.what());
  }
}

/// As Stream::synchronize(). Whether it could be done: if not, work may still be under way.
inline bool synchronize_if_possible(Stream& stream) noexcept {
  try {
    stream.synchronize();
    return true;
  } catch (std::exception const& error) {
    log(LogLevel::debug, error.what());
    return false;
  }
}

}  // namespace ddp
