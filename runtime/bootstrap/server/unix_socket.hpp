// Connections on one host: where a control server listens for its ranks, and how a rank finds it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp::unix_socket {

/// A path, or "@name" for a socket that no file stands for (unix(7), abstract).
struct Address {
  /// The most bytes that a path can have.
  static constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;

  sockaddr_un bytes{};
  socklen_t length = 0;

  /// Throws Error(invalid_argument) for a path that is too long.
  explicit Address(std::string const& path);
  [[nodiscard]] sockaddr const* get() const noexcept { return reinterpret_cast<sockaddr const*>(&bytes); }
};

/// Listens there, non-blocking. A file stays for the owner of its folder to remove. Throws Error(io), and as
/// Address.
[[nodiscard]] FileDescriptor listen(std::string const& path);

/// A connection to `server`, which listens at `path`, as `setting` says. Throws CommError(timeout),
/// Error(io), and as Address.
[[nodiscard]] FileDescriptor connect(std::string const& path, std::string const& server,
                                     std::string const& setting, Deadline deadline);

}  // namespace ddp::unix_socket
