#include "core/system/replace_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Unlinked and opened with O_EXCL: in a folder that others may write to, `path` may be somebody's link.
void write_whole(std::string const& path, std::string_view content) {
  ::unlink(path.c_str());
  FileDescriptor const file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) throw_errno(text("opening ", path), errno);
  while (!content.empty()) {
    ssize_t const written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(text("writing ", path), errno);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void replace_file(std::string const& path, std::string_view content) {
  static std::atomic<unsigned> number{0};  // two threads may report at once
  std::string const temporary = text(path, ".", ::getpid(), ".", number++, ".tmp");
  write_whole(temporary, content);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    int const cause = errno;
    ::unlink(temporary.c_str());
    throw_errno(text("renaming to ", path), cause);
  }
}

}  // namespace ddp
