#include "bootstrap/server/unix_socket.hpp"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "core/pausing_deadline.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::unix_socket {
namespace {

FileDescriptor make_socket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_errno("making a socket for the control plane", errno);
  return socket;
}

}  // namespace

Address::Address(std::string const& path) {
  if (path.size() > kLongest) {
    throw Error(ErrorCode::invalid_argument,
                text("the control socket's path has ", path.size(), " bytes, a socket's path at most ",
                     kLongest, ": ", path, "; start ddp-launch with a shorter TMPDIR, such as /tmp"));
  }
  bool const is_abstract = path.starts_with('@');
  bytes.sun_family = AF_UNIX;
  std::memcpy(bytes.sun_path, path.data(), path.size());
  if (is_abstract) bytes.sun_path[0] = '\0';
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (is_abstract ? 0 : 1));
}

FileDescriptor listen(std::string const& path) {
  Address const address(path);
  FileDescriptor socket = make_socket();
  if (::bind(socket.get(), address.get(), address.length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    throw_errno(text("listening on the control socket ", path), errno);
  }
  return socket;
}

FileDescriptor connect(std::string const& path, std::string const& server, std::string const& setting,
                       Deadline deadline) {
  Address const address(path);
  FileDescriptor socket = make_socket();
  PausingDeadline timeout(deadline);
  while (::connect(socket.get(), address.get(), address.length) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      throw_errno(text("connecting to ", server, " at ", path, " (from ", setting, ")"), errno);
    }
    // EAGAIN: the server's backlog is full. There is nothing to poll for.
    if (timeout.ended()) {
      throw CommError(ErrorCode::timeout, text("connecting to ", server, " at ", path, " timed out after ",
                                               seconds(deadline.allowed()), " s: it accepts no connections"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return socket;
}

}  // namespace ddp::unix_socket
