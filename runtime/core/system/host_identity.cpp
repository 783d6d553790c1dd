#include "core/system/host_identity.hpp"

#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>

#include "ddp/core/text.hpp"

namespace ddp {

std::string host_identity() {
  std::string boot;
  std::getline(Classic<std::ifstream>("/proc/sys/kernel/random/boot_id"), boot);
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, HOST_NAME_MAX);
  std::string identity = text(name, "/", boot, "/");
  // Memory is opened through the other's /proc/PID/fd; abstract sockets and loopback are of one network.
  std::error_code unknown;
  for (char const* kind : {"pid", "net"}) {
    identity += std::filesystem::read_symlink(text("/proc/self/ns/", kind), unknown).string();
  }
  return identity;
}

// The name may hold a '/', the rest of the identity does not.
std::string host_name(std::string const& identity) {
  std::size_t const last = identity.rfind('/');
  std::size_t const end = last == 0 || last == std::string::npos ? last : identity.rfind('/', last - 1);
  return identity.substr(0, end);
}

}  // namespace ddp
