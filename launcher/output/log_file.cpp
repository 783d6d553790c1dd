#include "launcher/output/log_file.hpp"

#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {

LogFile::LogFile(Console& console, LogDirectory const& directory, std::string const& name, bool append)
    : path_(directory.path() + "/" + name) {
  auto opened = directory.open(name, append);
  file_ = std::move(opened.file);
  if (!file_) give_up(console, std::move(opened.problem));
}

void LogFile::write(Console& console, std::string_view bytes) {
  if (!file_) return;
  if (std::string problem = write_all(file_, bytes); !problem.empty()) give_up(console, std::move(problem));
}

void LogFile::give_up(Console& console, std::string problem) {
  console.say_unwritten(text("cannot write ", path_, ": ", problem));
  problem_ = std::move(problem);
  file_.reset();
}

}  // namespace ddp::launcher
