// The hosts of a job, as a hostfile or --host names them.
#pragma once

#include <chrono>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/deadline.hpp"

namespace ddp::launcher {

struct Host {
  std::string name;
  int slots = 1;
  friend bool operator==(Host const&, Host const&) = default;
};

/// Open MPI's hostfile: one host a line, "node7 slots=4"; blank lines and what follows # are skipped;
/// max-slots is let through. Throws ExitError(64), with "path:line: reason", for anything else, for
/// a host that stands twice, and for a file without hosts.
[[nodiscard]] std::vector<Host> parse_hostfile(std::istream& in, std::string const& path);

/// How long the writing of a hostfile into a pipe may take.
inline constexpr std::chrono::seconds kHostfileTimeout{10};

/// The same from a regular file or a pipe. Throws ExitError(64) for anything else, for what cannot be read,
/// for more than a MiB, and for a pipe that has not ended at the deadline.
[[nodiscard]] std::vector<Host> read_hostfile(std::string const& path,
                                              Deadline deadline = Deadline::after(kHostfileTimeout));

/// "node7:4,node8". A host that stands twice has as many more slots, as with mpirun. Throws ExitError(64).
[[nodiscard]] std::vector<Host> parse_host_list(std::string_view list);

}  // namespace ddp::launcher
