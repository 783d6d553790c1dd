// Loaded into mpirun (LD_PRELOAD) where all hosts are this one: sockets that mpirun would open on every
// interface are opened on the loopback interface instead. Open MPI 4 has no setting for that.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

// In place of the C library's, whose parameters have reserved names.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
extern "C" __attribute__((visibility("default"))) int bind(int socket, sockaddr const* address,
                                                           socklen_t length) noexcept {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (address != nullptr && address->sa_family == AF_INET && length >= sizeof v4) {
    std::memcpy(&v4, address, sizeof v4);
    if (v4.sin_addr.s_addr == htonl(INADDR_ANY)) v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address = reinterpret_cast<sockaddr const*>(&v4);
    length = sizeof v4;
  } else if (address != nullptr && address->sa_family == AF_INET6 && length >= sizeof v6) {
    std::memcpy(&v6, address, sizeof v6);
    if (std::memcmp(&v6.sin6_addr, &in6addr_any, sizeof in6addr_any) == 0) v6.sin6_addr = in6addr_loopback;
    address = reinterpret_cast<sockaddr const*>(&v6);
    length = sizeof v6;
  }
  return static_cast<int>(::syscall(SYS_bind, socket, address, length));
}
