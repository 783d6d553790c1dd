// Which NCCL and which MPI a program would get here, asked in child processes: ddp-launch links neither, and
// a library that crashes, hangs or talks while it is loaded harms nobody there.
#pragma once

#include <chrono>
#include <span>
#include <string>

namespace ddp::launcher {

/// What became of the question for one version.
struct LibraryVersion {
  std::string version;  ///< "2.28.3", "Open MPI 4.1.4", or mpirun's first line; empty where there is none
  std::string path;     ///< the file
  std::string problem;  ///< why there is no version: not found, crashed, no answer in time
};

inline constexpr std::chrono::milliseconds kVersionPatience{5000};

/// NCCL's, from the first of `files` that can be loaded (names are looked up as programs' libraries are).
/// Throws ExitError(75) where no process can be started, as do the others.
[[nodiscard]] LibraryVersion nccl_version(std::span<std::string const> files,
                                          std::chrono::milliseconds patience = kVersionPatience);

/// An MPI library's own words, up to the first comma or line end. The library is not initialised.
[[nodiscard]] LibraryVersion mpi_version(std::span<std::string const> files,
                                         std::chrono::milliseconds patience = kVersionPatience);

/// The first line of `program --version`. `program` is a path.
[[nodiscard]] LibraryVersion program_version(std::string const& program,
                                             std::chrono::milliseconds patience = kVersionPatience);

/// The first dotted number of a text, "4.1.4" of "mpirun (Open MPI) 4.1.4"; empty where there is none.
[[nodiscard]] std::string version_number(std::string const& words);

}  // namespace ddp::launcher
