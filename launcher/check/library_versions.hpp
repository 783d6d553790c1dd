// Which NCCL, MPI and cuDNN a program would get here. Child processes find out: ddp-launch links none of
// them, and a library that crashes, hangs or prints while it is loaded does no harm in a child.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/system/child_question.hpp"
#include "device/info/library_version.hpp"

namespace ddp::launcher {

/// A library's version, or why it is not known.
struct LibraryVersion {
  std::string version;  ///< "2.28.3", "Open MPI 4.1.4", or mpirun's first line; empty where there is none
  std::string path;     ///< the file
  std::string problem;  ///< why there is no version: not found, crashed, no answer in time
};

inline constexpr std::chrono::milliseconds kVersionTimeout{5000};

/// A request for a library's version that is under way; several may be at once.
class VersionQuestion {
 public:
  explicit VersionQuestion(ChildQuestion question) : question_(std::move(question)) {}
  /// Waits for the answer. Once.
  [[nodiscard]] LibraryVersion answer(std::chrono::milliseconds timeout = kVersionTimeout);

 private:
  ChildQuestion question_;
};

/// Asks the first of the library's files that can be loaded, without initialising it. Throws ExitError(75)
/// where no process can be started, as does program_version().
[[nodiscard]] VersionQuestion ask_version(VersionedLibrary const& library);

/// The first line of `program --version`. `program` is a path.
[[nodiscard]] LibraryVersion program_version(std::string const& program,
                                             std::chrono::milliseconds timeout = kVersionTimeout);

/// The first numbers with dots between: 2, 28, 3 of "2.28.3+cuda13.0", 4, 1, 4 of "mpirun (Open MPI) 4.1.4".
[[nodiscard]] std::vector<int> version_parts(std::string const& words);

/// Compares only as many numbers as both have: "13.0" is not older than "13.0.88".
[[nodiscard]] bool is_older(std::string const& one, std::string const& other);

}  // namespace ddp::launcher
