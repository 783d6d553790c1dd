// A stream to the terminal (or pipe, or file) that never blocks the event loop.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp::launcher {

/// Queues what the reader does not take at once. When the reader is gone, or nothing can be written any more,
/// what is written is dropped.
class Sink {
 public:
  /// Writes to where `fd` leads. The descriptor's flags, which other processes share, stay as they are.
  explicit Sink(int fd);

  void write(std::string_view bytes);
  /// Writes what the reader takes now.
  void flush();
  /// Waits until all is written, the reader has taken nothing for `timeout`, or `interrupt_fd` is readable.
  /// Then drops what is left, and returns its size.
  std::size_t flush_all(Deadline::Duration timeout, int interrupt_fd);

  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size() - written_; }
  /// The errno of an unexpected failure (a full disk); 0: none. It is no failure if the reader is gone, or if
  /// there never was one.
  [[nodiscard]] int problem() const noexcept { return problem_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool is_terminal() const noexcept { return is_terminal_; }

 private:
  void drop() noexcept;

  int fd_;
  FileDescriptor own_;
  bool blocking_ = false;  ///< a regular file, or something that could not be opened anew
  bool closed_ = false;
  bool is_terminal_ = false;
  int problem_ = 0;
  std::string pending_;
  std::size_t written_ = 0;  ///< of pending_
};

}  // namespace ddp::launcher
