// Where a job's control socket and error files lie.
#pragma once

#include <string>

#include "core/system/file_descriptor.hpp"

namespace ddp::launcher {

/// A directory of mode 0700 in TMPDIR, or in /tmp, which this object removes at its end. Its name is chosen
/// before it exists, so that a guard can know the name first. The process holds a lock in it: other launchers
/// remove a directory whose lock is free, since its launcher and guard were both killed.
class ControlDirectory {
 public:
  /// Chooses a name that nobody has; makes nothing. Where TMPDIR is too long for a socket's path, takes
  /// another place. Throws ExitError(73) where every user could replace the directory.
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
