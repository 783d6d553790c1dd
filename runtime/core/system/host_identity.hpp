// Which host this is, in words that ranks can compare.
#pragma once

#include <string>

namespace ddp {

/// Names this host as seen from its processes, until its next boot: equal where memory can be shared,
/// processes see each other's numbers, and have one network (loopback, Unix sockets without a file). The name
/// may hold any bytes.
[[nodiscard]] std::string host_identity();

/// The host's name, with which its identity begins.
[[nodiscard]] std::string host_name(std::string const& identity);

}  // namespace ddp
