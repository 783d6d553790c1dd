// Calls of the program's own functions in a step.
#pragma once

#include <cstddef>
#include <exception>
#include <string_view>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "reducer/step.hpp"

namespace ddp {

/// Functions of the program that a step is calling in this thread.
inline thread_local int program_calls = 0;

/// Counts one while it lives.
struct ProgramCall {
  ProgramCall() noexcept { ++program_calls; }
  ~ProgramCall() { --program_calls; }
  ProgramCall(ProgramCall const&) = delete;
  ProgramCall& operator=(ProgramCall const&) = delete;
};

/// Calls a function of the program, and adds to an exception where it came from.
template <class Call>
void call_program(std::string_view what, std::size_t bucket, Step const& step, Call const& call) {
  auto const failed = [&](std::string_view why) {
    return Error(ErrorCode::invalid_state,
                 text(what, " threw at bucket ", bucket, " of synchronised step ", step.number, ": ", why));
  };
  ProgramCall const counted;
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
