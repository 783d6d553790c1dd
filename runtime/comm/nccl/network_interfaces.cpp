#include "comm/nccl/network_interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "ddp/core/text.hpp"

namespace ddp::nccl {
namespace {

// The interfaces with an address.
std::vector<std::string> interfaces_that_are_up() {
  std::vector<std::string> names;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return names;
  for (ifaddrs const* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    auto const family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (std::ranges::find(names, each->ifa_name) == names.end()) names.emplace_back(each->ifa_name);
  }
  ::freeifaddrs(all);
  return names;
}

}  // namespace

bool admits_interface(std::string const& value, std::string const& interface) {
  bool const excludes = value.starts_with('^');
  std::string rest = value.substr(excludes ? 1 : 0);
  bool const exactly = rest.starts_with('=');
  if (exactly) rest.erase(0, 1);
  if (rest.empty()) return true;
  Classic<std::istringstream> names(rest);
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(std::min(name.find(':'), name.size()));  // a port may follow
    if (exactly ? interface == name : interface.starts_with(name)) return !excludes;
  }
  return excludes;
}

std::string why_no_interface() {
  char const* const value = std::getenv("NCCL_SOCKET_IFNAME");
  if (value == nullptr) return {};
  auto const names = interfaces_that_are_up();
  bool const one =
      std::ranges::any_of(names, [&](auto const& name) { return admits_interface(value, name); });
  if (one || names.empty()) return {};
  return text("NCCL_SOCKET_IFNAME=", value, " admits none of the interfaces of this host (",
              join(names, ", "), "); name the one through which the hosts reach each other, or unset it");
}

}  // namespace ddp::nccl
