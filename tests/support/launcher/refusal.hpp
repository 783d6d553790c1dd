// What ddp-launch says to input that it refuses.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/options/options.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {

/// The message of the usage error that `call` ends with.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (ExitError const& error) {
    EXPECT_EQ(error.exit_code(), exit_code::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

inline std::string refusal_of_options(std::vector<std::string> const& words) {
  SCOPED_TRACE(::testing::PrintToString(words));
  return refusal([&] { static_cast<void>(parse_options(words)); });
}

}  // namespace ddp::launcher
