#include "core/system/host_identity.hpp"

#include <unistd.h>

#include <climits>
#include <fstream>

#include "ddp/core/text.hpp"

namespace ddp {

std::string host_identity() {
  std::string boot;
  std::getline(Classic<std::ifstream>("/proc/sys/kernel/random/boot_id"), boot);
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, HOST_NAME_MAX);
  // Processes that see each other's numbers under /proc are in one PID namespace.
  char pid_namespace[64] = {};
  [[maybe_unused]] auto const length =
      ::readlink("/proc/self/ns/pid", pid_namespace, sizeof(pid_namespace) - 1);
  return text(name, "/", boot, "/", pid_namespace);
}

// The name may hold a '/', the rest of the identity does not.
std::string host_name(std::string const& identity) {
  std::size_t const last = identity.rfind('/');
  std::size_t const end = last == 0 || last == std::string::npos ? last : identity.rfind('/', last - 1);
  return identity.substr(0, end);
}

}  // namespace ddp
