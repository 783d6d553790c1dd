// The one family of exceptions that this library throws.
#pragma once

#include <exception>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// What went wrong, for code that must branch on it. The message is for people.
enum class ErrorCode {
  invalid_argument,  ///< the caller's values are wrong; nothing was done
  invalid_state,     ///< the call came too early, too late, twice, or after a failure
  mismatch,          ///< ranks disagree: shapes, dtypes, counts, order of operations
  timeout,           ///< a deadline passed
  peer_lost,         ///< another rank died, left or failed: a consequence, not a first cause
  aborted,           ///< somebody called abort()
  protocol,          ///< the control plane received a message that is not allowed
  io,                ///< a file, socket or system call failed
  out_of_memory,     ///< an allocation failed
  unsupported,       ///< asked for something that this build or machine lacks
  not_found,         ///< a file, device or key is not there
  device,            ///< a GPU or its driver reported an error; the process cannot go on using that GPU
};

/// The code's name as it stands in reports and in DDP_ERROR_FILE: "peer_lost".
[[nodiscard]] std::string_view to_string(ErrorCode code) noexcept;

/// Base of all errors. what() says what was expected, what was found, where, and what to do.
class Error : public std::runtime_error {
 public:
  /// `where` is the place that threw, not the one that called.
  Error(ErrorCode code, std::string const& message,
        std::source_location where = std::source_location::current());
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }  ///< For code that must branch.
  /// Where it was thrown.
  [[nodiscard]] std::source_location const& where() const noexcept { return where_; }

 private:
  ErrorCode code_;
  std::source_location where_;
};

struct Failure;

/// An error of a group of ranks. The communicator is unusable, the process is not: the group may be built
/// again.
class CommError : public Error {
 public:
  /// The message is to_string(failure).
  explicit CommError(Failure const& failure, std::source_location where = std::source_location::current());
  /// The same failure, said with more words.
  CommError(Failure const& failure, std::string const& message,
            std::source_location where = std::source_location::current());
  // Spelled out: nvcc 13.0 ends with an internal error at an inherited constructor with this default.
  /// As Error; Failure::Manner::threw.
  CommError(ErrorCode code, std::string const& message,
            std::source_location where = std::source_location::current());
  /// What happened to which ranks, in ddp/core/failure.hpp. Valid as long as a copy of this error lives.
  [[nodiscard]] Failure const& failure() const noexcept { return *failure_; }

 private:
  std::shared_ptr<Failure const> failure_;  // shared, since copies of exceptions must not throw
};

/// The Failure of a CommError. Any other error has Manner::threw, and invalid_state if it is no Error.
[[nodiscard]] Failure failure_of(std::exception const& error);

/// Throws Error(invalid_argument) unless `holds`. For preconditions of public functions.
void require(bool holds, std::string_view message,
             std::source_location where = std::source_location::current());

/// The same, with a message that is only built if it is needed: for checks in every step.
template <class Message>
requires std::is_invocable_r_v<std::string, Message const&>
void require(bool holds, Message const& message,
             std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]] {
    throw Error(ErrorCode::invalid_argument, message(), where);
  }
}

/// Throws Error(code) with `doing`, errno's name and text.
[[noreturn]] void throw_errno(std::string_view doing, int error_number, ErrorCode code = ErrorCode::io,
                              std::source_location where = std::source_location::current());

}  // namespace ddp
