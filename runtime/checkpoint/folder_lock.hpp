// The lock of a folder of checkpoints.
#pragma once

#include <filesystem>

#include "core/system/private_descriptor.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp {

/// Locks the file ".lock" in a folder, for one holder at a time, in this process and others. Only those who
/// may write to the folder can. It is an open file description lock (fcntl): as long as its descriptor is
/// open, it stays, whatever else this process opens and closes. A process that this one forks, which shares
/// all descriptors, closes that one at once: the lock ends with its holder.
class FolderLock {
 public:
  /// Waits until the deadline, since ranks that were killed may not have ended yet. On a file system without
  /// locks it only warns. Throws Error(invalid_state) if another job holds it, Error(io).
  FolderLock(std::filesystem::path const& folder, Deadline deadline);

 private:
  PrivateDescriptor file_;
};

}  // namespace ddp
