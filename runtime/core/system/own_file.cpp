#include "core/system/own_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ios>
#include <utility>

#include "ddp/core/error.hpp"

namespace ddp {

// Without O_NONBLOCK, opening a FIFO of that name would wait for its reader.
constexpr int kForWriting = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
constexpr mode_t kModeOfFiles = 0644;

OwnFile open_own_file(int folder, std::string const& name, bool append, uid_t owner) {
  int const how = kForWriting | (append ? O_APPEND : 0);
  auto const problem = [](std::string words) { return OwnFile{FileDescriptor{}, std::move(words)}; };
  FileDescriptor file(openat(folder, name.c_str(), how | O_CREAT | O_EXCL, kModeOfFiles));
  if (file) return {std::move(file), {}};
  if (errno != EEXIST) return problem(std::strerror(errno));
  file = FileDescriptor(openat(folder, name.c_str(), how));
  if (!file && errno == ELOOP) return problem("it is a symbolic link, which is not followed");
  if (!file && errno == ENXIO) return problem("it is no regular file");
  if (!file) return problem(std::strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return problem(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return problem("it is no regular file");
  if (status.st_uid != geteuid() && status.st_uid != owner) {
    return problem(text("it belongs to user ", status.st_uid));
  }
  if (status.st_nlink != 1) return problem("it is there under another name too");
  if (!append && ftruncate(file.get(), 0) != 0) return problem(std::strerror(errno));
  return {std::move(file), {}};
}

std::string write_all(FileDescriptor const& file, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t const count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      int const problem = errno;
      return text(std::strerror(problem), problem == EFBIG ? " (ulimit -f)" : "", "; the rest is not in it");
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

void OwnFileStream::open(std::filesystem::path const& path) {
  struct stat folder {};
  auto const parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (stat(parent.c_str(), &folder) != 0) throw_errno(text("looking at the folder ", parent.string()), errno);
  OwnFile opened =
      open_own_file(AT_FDCWD, path.string(), false, folder.st_uid);  // a file server may rename users
  if (!opened.file)
    throw Error(ErrorCode::io, text("opening ", path.string(), " for writing: ", opened.problem));
  buffer_ = __gnu_cxx::stdio_filebuf<char>(opened.file.release(), std::ios::out | std::ios::binary);
  rdbuf(&buffer_);
}

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

}  // namespace ddp
