// Where a job's control socket and error files lie.
#pragma once

#include <string>

namespace ddp::launcher {

/// A directory of mode 0700 in TMPDIR (or /tmp), removed with all that is in it when this goes.
/// Its name is known before it exists, so that a guard can be told first.
class ControlDirectory {
 public:
  /// Chooses a name that nobody has; makes nothing.
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
  bool made_ = false;
};

}  // namespace ddp::launcher
