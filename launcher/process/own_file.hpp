// Files that this user writes, whoever else may write beside them.
#pragma once

#include <sys/types.h>

#include <string>

#include "core/file_descriptor.hpp"

namespace ddp::launcher {

struct OwnFile {
  FileDescriptor file;
  std::string problem;  ///< why there is none
};

/// `name`, relative to the open folder `folder` or AT_FDCWD, for writing: new, emptied, or with `append` as
/// it is. What is there already must be a regular file of this user's, or of `owner`'s, with no other name;
/// no link is followed. Nothing is waited for.
[[nodiscard]] OwnFile open_own_file(int folder, std::string const& name, bool append, uid_t owner);

}  // namespace ddp::launcher
