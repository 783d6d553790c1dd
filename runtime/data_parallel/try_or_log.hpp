// For actions that may fail without harm, such as those on streams that have failed.
#pragma once

#include <exception>

#include "ddp/core/log.hpp"

namespace ddp {

/// Calls `action()`. Returns whether it succeeded; if not, the log says why.
template <class Action>
bool try_or_log(Action const& action) noexcept {
  try {
    action();
    return true;
  } catch (std::exception const& error) {
    log(LogLevel::debug, error.what());
    return false;
  }
}

}  // namespace ddp
