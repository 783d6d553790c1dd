// The exit codes of ddp-launch that are its own, and the exception that carries one.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>

namespace ddp::launcher {

/// After sysexits.h and the shell. Otherwise ddp-launch exits with the first cause's code, or 128 + its
/// signal.
namespace exit_code {
inline constexpr int kEarlyLeave = 1;       ///< a rank exited with 0 without leaving the group
inline constexpr int kUsage = 64;           ///< options that cannot be right
inline constexpr int kNoDevice = 69;        ///< a device that is not there, and what --check finds amiss
inline constexpr int kInternal = 70;        ///< a defect of ddp-launch
inline constexpr int kCannotCreate = 73;    ///< the directory given with --log-dir
inline constexpr int kOutputLost = 74;      ///< the job was fine, but its output could not be written
inline constexpr int kRetry = 75;           ///< out of processes, memory or descriptors: worth a retry
inline constexpr int kNotExecutable = 126;  ///< the program is there and cannot be run
inline constexpr int kNotFound = 127;       ///< the program is not there
inline constexpr int kSignalBase = 128;
}  // namespace exit_code

/// The exit code of a process whose exec failed with this errno.
[[nodiscard]] constexpr int exec_failure_code(int error_number) noexcept {
  return error_number == ENOENT ? exit_code::kNotFound : exit_code::kNotExecutable;
}

/// Ends ddp-launch before a rank was started: the message is said once, the code is returned.
class ExitError : public std::runtime_error {
 public:
  ExitError(int exit_code, std::string const& message) : std::runtime_error(message), code_(exit_code) {}
  [[nodiscard]] int exit_code() const noexcept { return code_; }

 private:
  int code_;
};

}  // namespace ddp::launcher
