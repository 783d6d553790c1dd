// Where ranks find the control server: a socket in a directory that only this user can enter.
#pragma once

#include <string>

#include "core/system/file_descriptor.hpp"

namespace ddp {

/// A listening, non-blocking AF_UNIX stream socket `<parent>/ddp-XXXXXX/control`, in a new directory of mode
/// 0700. Removes both at its end.
class ServerSocket {
 public:
  /// `parent` empty: TMPDIR, or /tmp. Throws Error(invalid_argument) when the path is too long for a socket,
  /// Error(io) when it cannot be made.
  explicit ServerSocket(std::string const& parent);

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }

 private:
  /// Removes the directory and what is in it, also when the constructor fails later on.
  class Directory {
   public:
    explicit Directory(std::string const& parent);
    ~Directory();
    Directory(Directory const&) = delete;
    Directory& operator=(Directory const&) = delete;
    [[nodiscard]] std::string const& path() const noexcept { return path_; }

   private:
    std::string path_;
  };

  Directory directory_;
  std::string path_;
  FileDescriptor socket_;
};

}  // namespace ddp
