// Files and folders of this user, in places where others may write too.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <ext/stdio_filebuf.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <string_view>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

struct OwnFile {
  FileDescriptor file;
  std::string problem;  ///< why there is none
};

/// Opens `name`, relative to the open folder `folder` or AT_FDCWD, for writing: new, emptied, or with
/// `append` as it is. An existing file must be regular, this user's or `owner`'s, and have no other name. No
/// link is followed, nothing is waited for.
[[nodiscard]] OwnFile open_own_file(int folder, std::string const& name, bool append, uid_t owner);

/// Writes all of `bytes`. Returns why it failed; empty if it did not.
[[nodiscard]] std::string write_all(FileDescriptor const& file, std::string_view bytes);

/// Writes to a file that open_own_file() opens and empties: in a folder that others may write to, the name
/// may be a link that they made to a file of this user.
class OwnFileStream : public Classic<std::ostream> {
 public:
  OwnFileStream() : Classic(nullptr) {}
  /// The file may belong to the folder's owner, too. Throws Error(io).
  void open(std::filesystem::path const& path);

 private:
  __gnu_cxx::stdio_filebuf<char> buffer_;
};

/// Whether every user may rename what others have in such a folder.
[[nodiscard]] inline bool is_everybodys(struct stat const& folder) noexcept {
  return (folder.st_mode & S_IWOTH) != 0 && (folder.st_mode & S_ISVTX) == 0;
}

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

}  // namespace ddp
