#include "core/system/replace_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "core/system/own_file.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Unlinked and opened with O_EXCL: in a folder that others may write to, `path` may be somebody's link.
void write_whole(std::string const& path, std::string_view content) {
  ::unlink(path.c_str());
  FileDescriptor const file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) throw_errno(text("opening ", path), errno);
  std::string const problem = write_all(file, content);
  if (!problem.empty()) throw Error(ErrorCode::io, text("writing ", path, ": ", problem));
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
