#include "launcher/log_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {

LogFile::LogFile(Console& console, std::string path, bool append) : path_(std::move(path)) {
  // Without O_NONBLOCK a FIFO of that name would wait for its reader.
  int const how = O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | O_NONBLOCK | O_CLOEXEC;
  file_ = FileDescriptor(open(path_.c_str(), how, 0644));
  if (!file_) {
    console.say(text("warning: cannot write ", path_, ": ", std::strerror(errno)));
    return;
  }
  struct stat status {};
  if (fstat(file_.get(), &status) == 0 && !S_ISREG(status.st_mode)) {
    console.say(text("warning: ", path_, " is no regular file; nothing is logged there"));
    file_.reset();
  }
}

void LogFile::write(Console& console, std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    ssize_t const count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      console.say(text("warning: cannot write ", path_, ": ", std::strerror(errno),
                       "; the rest of this output is only shown"));
      file_.reset();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace ddp::launcher
