#include "launcher/output/log_file.hpp"

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
  if (!file_) return;
  std::string const problem = write_all(file_, bytes);
  if (problem.empty()) return;
  console.say(text("warning: cannot write ", path_, ": ", problem));
  file_.reset();
}

}  // namespace ddp::launcher
