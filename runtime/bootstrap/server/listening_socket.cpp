#include "bootstrap/server/listening_socket.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "bootstrap/server/tcp.hpp"
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

UnixAddress::UnixAddress(std::string const& path) noexcept {
  bool const is_abstract = path.starts_with('@');
  bytes.sun_family = AF_UNIX;
  std::memcpy(bytes.sun_path, path.data(), path.size());
  if (is_abstract) bytes.sun_path[0] = '\0';
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (is_abstract ? 0 : 1));
}

ListeningSocket::Directory::Directory(std::string const& parent)
    : path_(parent_or_default(parent) + "/ddp-XXXXXX") {
  std::size_t const length = path_.size() + std::strlen(kName);
  if (length > UnixAddress::kLongest) {
    throw Error(ErrorCode::invalid_argument,
                text("the control socket's path ", path_, kName, " would have ", length,
                     " bytes, a socket's path has at most ", UnixAddress::kLongest,
                     ". Set TMPDIR to a shorter one, such as /tmp"));
  }
  if (::mkdtemp(path_.data()) == nullptr) {
    throw_errno(text("making the control socket's directory ", path_, " (TMPDIR chooses where)"), errno);
  }
}

ListeningSocket::Directory::~Directory() {
  ::unlink((path_ + kName).c_str());
  ::rmdir(path_.c_str());
}

ListeningSocket::ListeningSocket(std::optional<std::string> const& parent)
    : socket_(FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))) {
  if (!socket_) throw_errno("making the control socket", errno);
  if (parent) path_ = directory_.emplace(*parent).path() + kName;
  if (!parent) path_ = "@ddp-" + tcp::make_secret();
  UnixAddress const address(path_);
  if (::bind(socket_.get(), address.get(), address.length) != 0) {
    throw_errno(text("binding the control socket ", path_), errno);
  }
  if (::listen(socket_.get(), SOMAXCONN) != 0)
    throw_errno(text("listening on the control socket ", path_), errno);
}

}  // namespace ddp
