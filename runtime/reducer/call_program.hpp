// Calls of the program's own functions in a step.
#pragma once

#include <cstddef>
#include <exception>
#include <string_view>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "reducer/step.hpp"

namespace ddp {

/// Calls a function of the program, and adds to an exception where it came from.
template <class Call>
void call_program(std::string_view what, std::size_t bucket, Step const& step, Call const& call) {
  auto const failed = [&](std::string_view why) {
    return Error(ErrorCode::invalid_state,
                 text(what, " threw at bucket ", bucket, " of synchronised step ", step.number, ": ", why));
  };
  try {
    call();
  } catch (CommError const&) {
    throw;  // a rank has failed, which the error names
  } catch (std::exception const& error) {
    throw failed(error.what());
  } catch (...) {
    throw failed("something that is no std::exception");
  }
}

}  // namespace ddp
