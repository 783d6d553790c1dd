// Work that may crash, hang or print, done in a child process: loading a foreign library, for example.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "core/system/file_descriptor.hpp"

namespace ddp {

/// A child that has one answer to give. Several may be under way at once. One thread at a time.
class ChildQuestion {
 public:
  struct Answer {
    std::string words;  ///< what the child wrote, 64 KiB at most
    int status = 0;     ///< as waitpid() gives it
    bool late = false;  ///< it did not answer in time and was killed
  };

  /// Runs `work` in a child whose stdin, stdout and stderr are /dev/null. `work` writes its answer to the
  /// descriptor that it gets. Throws Error(io) if no process can be started.
  explicit ChildQuestion(std::function<void(int)> const& work);
  /// Kills the child if nobody has asked for its answer.
  ~ChildQuestion();
  ChildQuestion(ChildQuestion&& other) noexcept;
  ChildQuestion(ChildQuestion const&) = delete;
  ChildQuestion& operator=(ChildQuestion const&) = delete;
  ChildQuestion& operator=(ChildQuestion&&) = delete;

  /// Waits until `timeout` after the child's start at most, and reaps the child. Call it once.
  [[nodiscard]] Answer answer(std::chrono::milliseconds timeout);

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  FileDescriptor reading_;
  pid_t child_ = -1;
};

}  // namespace ddp
