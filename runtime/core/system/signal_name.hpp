// Signals in messages.
#pragma once

#include <cstring>
#include <string>

#include "ddp/core/text.hpp"

namespace ddp {

/// "SIGKILL"; "signal 77" for one without a name.
[[nodiscard]] inline std::string signal_name(int signal) {
  char const* const name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : text("signal ", signal);
}

}  // namespace ddp
