#include "launcher/process/private_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ios>

#include "ddp/core/text.hpp"

namespace ddp::launcher {

PrivateFolder open_private_folder(int parent, std::string const& name) {
  PrivateFolder folder;
  struct stat status {};
  if (fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    folder.exists = errno != ENOENT && errno != ENOTDIR;
    if (folder.exists) folder.found = std::strerror(errno);
    return folder;
  }
  folder.exists = true;
  FileDescriptor handle(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (S_ISLNK(status.st_mode)) {
    folder.found = "a link";
  } else if (!S_ISDIR(status.st_mode)) {
    folder.found = "no folder";
  } else if (handle &&
             fstat(handle.get(), &status) != 0) {  // of what is open: the name may be another's by now
    folder.found = std::strerror(errno);
  } else if (status.st_uid != geteuid() || (status.st_mode & 077U) != 0) {
    folder.found = text("one of user ", status.st_uid, ", with mode 0", std::oct, status.st_mode & 0777U);
  } else if (!handle) {
    folder.found = "one that cannot be opened";
  } else {
    folder.handle = std::move(handle);
  }
  return folder;
}

}  // namespace ddp::launcher
