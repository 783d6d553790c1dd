// Folders that nobody but this user can put anything into.
#pragma once

#include <string>

#include "core/file_descriptor.hpp"

namespace ddp::launcher {

struct PrivateFolder {
  FileDescriptor handle;  ///< empty: not there, or not private
  bool exists = false;    ///< something of that name does
  std::string found;      ///< what is there instead; empty where there is nothing, or what was expected
};

/// What every control directory must be, for messages.
inline constexpr char const* kPrivateFolder = "a folder of this user, with mode 0700";

/// Opens `name`, relative to the open folder `parent` or AT_FDCWD, if it is a folder (no link) of this user
/// that others can neither enter nor read.
[[nodiscard]] PrivateFolder open_private_folder(int parent, std::string const& name);

}  // namespace ddp::launcher
