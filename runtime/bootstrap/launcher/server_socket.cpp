#include "bootstrap/launcher/server_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr char const* kName = "/control";

std::string parent_or_default(std::string const& parent) {
  if (!parent.empty()) return parent;
  char const* const temporary = std::getenv("TMPDIR");
  return temporary != nullptr && temporary[0] != '\0' ? temporary : "/tmp";
}

}  // namespace

ServerSocket::Directory::Directory(std::string const& parent)
    : path_(parent_or_default(parent) + "/ddp-XXXXXX") {
  std::size_t const length = path_.size() + std::strlen(kName);
  std::size_t const longest = sizeof(sockaddr_un::sun_path) - 1;
  if (length > longest) {
    throw Error(ErrorCode::invalid_argument, text("the control socket's path ", path_, kName, " would have ",
                                                  length, " bytes, a socket's path has at most ", longest,
                                                  ". Set TMPDIR to a shorter one, such as /tmp"));
  }
  if (::mkdtemp(path_.data()) == nullptr) {
    throw_errno(text("making the control socket's directory ", path_, " (TMPDIR chooses where)"), errno);
  }
}

ServerSocket::Directory::~Directory() {
  ::unlink((path_ + kName).c_str());
  ::rmdir(path_.c_str());
}

ServerSocket::ServerSocket(std::string const& parent)
    : directory_(parent),
      path_(directory_.path() + kName),
      socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!socket_) throw_errno("making the control socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  if (::bind(socket_.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0) {
    throw_errno(text("binding the control socket ", path_), errno);
  }
  if (::listen(socket_.get(), SOMAXCONN) != 0)
    throw_errno(text("listening on the control socket ", path_), errno);
}

}  // namespace ddp
