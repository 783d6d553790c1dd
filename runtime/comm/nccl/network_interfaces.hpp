// The network interfaces that NCCL may use.
#pragma once

#include <string>
#include <vector>

namespace ddp::nccl {

/// Whether NCCL_SOCKET_IFNAME, with this value, admits an interface: names that begin so, with commas between
/// them; "=" in front: exactly these names; "^": all but those. Empty: all.
/// Source: NCCL's documentation of environment variables.
[[nodiscard]] bool admits_interface(std::string const& value, std::string const& interface);

/// What is wrong with NCCL_SOCKET_IFNAME on this host: it is set, and admits none of the interfaces that are
/// up. Empty if all is well.
[[nodiscard]] std::string why_no_interface();

}  // namespace ddp::nccl
