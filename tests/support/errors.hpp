// The error that a call ends with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ddp/core/error.hpp"

namespace ddp::testing {

/// The `Expected` that `call` throws; fails the test if it throws none.
template <class Expected = Error, class Call>
[[nodiscard]] Expected error_of(Call call) {
  try {
    call();
  } catch (Expected const& error) {
    return error;
  }
  ADD_FAILURE() << "expected an error";
  return Expected(ErrorCode::invalid_state, "no error");
}

/// Its message.
template <class Call>
[[nodiscard]] std::string message_of(Call call) {
  return error_of(call).what();
}

}  // namespace ddp::testing
