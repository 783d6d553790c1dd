// Where ranks of its host find the control server.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>

#include "core/system/private_descriptor.hpp"

namespace ddp {

/// The address of a Unix socket: a path, or "@name" for a socket that no file stands for (unix(7), abstract).
struct UnixAddress {
  sockaddr_un bytes{};
  socklen_t length = 0;

  /// The most bytes that a path can have.
  static constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  /// `path` has at most kLongest bytes.
  explicit UnixAddress(std::string const& path) noexcept;
  [[nodiscard]] sockaddr const* get() const noexcept { return reinterpret_cast<sockaddr const*>(&bytes); }
};

/// A listening, non-blocking AF_UNIX stream socket `<parent>/ddp-XXXXXX/control`, in a new directory of mode
/// 0700, both of which it removes at its end. Or one "@ddp-…", of which nothing is left when the process is
/// killed.
class ListeningSocket {
 public:
  /// `parent` empty: TMPDIR, or /tmp; nullopt: a socket without a file. Throws Error(invalid_argument) when
  /// the path is too long for a socket, Error(io) when it cannot be made.
  explicit ListeningSocket(std::optional<std::string> const& parent);

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

  std::optional<Directory> directory_;
  std::string path_;
  PrivateDescriptor socket_;
};

}  // namespace ddp
