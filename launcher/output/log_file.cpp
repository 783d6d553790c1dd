#include "launcher/output/log_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {

LogFile::LogFile(Console& console, LogDirectory const& directory, std::string const& name, bool append)
    : path_(directory.path() + "/" + name) {
  auto opened = directory.open(name, append);
  file_ = std::move(opened.file);
  if (!file_) console.say(text("warning: cannot write ", path_, ": ", opened.problem));
}

void LogFile::write(Console& console, std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    ssize_t const count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      int const problem = errno;
      console.say(text("warning: cannot write ", path_, ": ", std::strerror(problem),
                       problem == EFBIG ? " (ulimit -f)" : "", "; the rest is not in it"));
      file_.reset();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace ddp::launcher
