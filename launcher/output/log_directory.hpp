// The folder that holds a job's log files.
#pragma once

#include <sys/types.h>

#include <string>

#include "core/system/file_descriptor.hpp"
#include "core/system/own_file.hpp"

namespace ddp::launcher {

/// The folder stays open, so that it cannot be replaced. Links are not followed, neither to the folder nor to
/// a file in it: another user could make one that leads to any file of this user.
class LogDirectory {
 public:
  LogDirectory() = default;  ///< none
  /// Makes the folder, and those above it, where they are missing. Throws ExitError(73) with the reason where
  /// it cannot be made or written, is a link, belongs to another user but root, or may be written by
  /// everybody.
  explicit LogDirectory(std::string const& path);

  explicit operator bool() const noexcept { return static_cast<bool>(folder_); }
  /// As it was given.
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

  /// The file of that name, for writing: see open_own_file().
  [[nodiscard]] OwnFile open(std::string const& name, bool append) const;

  /// Removes this user's files that have names of ddp-launch's files and that a job of `ranks` ranks does not
  /// overwrite: output of higher ranks, flight records, and unless `by_mpirun` what mpirun said. Everything
  /// else stays, so do links, and files that cannot be removed.
  void remove_stale(int ranks, bool by_mpirun) const;

 private:
  std::string path_;
  FileDescriptor folder_;
  uid_t owner_ = 0;  ///< of the files in it: this user, or the one that a file server maps it to
};

}  // namespace ddp::launcher
