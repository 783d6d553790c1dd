// Where a job's control socket and error files lie.
#pragma once

#include <string>

#include "core/file_descriptor.hpp"

namespace ddp::launcher {

/// A directory of mode 0700 in TMPDIR, or in /tmp, removed with all that is in it when this goes. Its name is
/// known before it exists, so that a guard can be told first. While its process lives it holds a lock in
/// there: who makes another one removes those whose lock is free, since their launcher and guard were both
/// killed.
class ControlDirectory {
 public:
  /// Chooses a name that nobody has; makes nothing. Where TMPDIR is too long for the path of a socket,
  /// another place is taken.
  ControlDirectory();
  ~ControlDirectory() { remove(); }
  ControlDirectory(ControlDirectory const&) = delete;
  ControlDirectory& operator=(ControlDirectory const&) = delete;

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// Throws ExitError(73) where that fails.
  void make();
  void remove() noexcept;

 private:
  std::string path_;
  FileDescriptor lock_;
  bool made_ = false;
};

}  // namespace ddp::launcher
