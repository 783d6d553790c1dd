// Connections between hosts: where a control server listens for them, and how a rank finds it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp::tcp {

/// Listens at `port` (0: any that is free) on all interfaces, on IPv6 and IPv4. Non-blocking. Throws
/// Error(io), for a port that is taken too.
[[nodiscard]] FileDescriptor listen(int port);
/// The same at one address that is_loopback(); "localhost" is 127.0.0.1.
[[nodiscard]] FileDescriptor listen_here(std::string const& address, int port);
[[nodiscard]] int port_of(FileDescriptor const& listening);

/// This host's addresses at which other hosts may reach it.
[[nodiscard]] std::vector<std::string> own_addresses();

/// 128 random bits, as 32 hexadecimal digits. Throws Error(io).
[[nodiscard]] std::string make_secret();

/// Whether it means this host alone: "localhost", 127.x.y.z or ::1.
[[nodiscard]] bool is_loopback(std::string const& address);

/// Messages of both ends leave at once, and a host that is silent is noticed after some 15 s.
void tune(int socket) noexcept;

/// Where a server listens.
struct Place {
  std::vector<std::string> hosts;  ///< addresses or names of one host: any of them may be the one that works
  int port = 0;
  std::string secret;  ///< what the server wants to hear; "" if it asks for none
};

/// A connection to the control server at `place`, which has answered to the secret. Tries all addresses at
/// once, and again until the deadline, since the server may start later. Throws CommError(timeout) with what
/// was found instead (manner: stopped, if something listens that does not answer); `who` names the server:
/// "rank 0 at node1:29500 (MASTER_ADDR, MASTER_PORT)".
[[nodiscard]] FileDescriptor connect(Place const& place, std::string const& who, Deadline deadline);

}  // namespace ddp::tcp
