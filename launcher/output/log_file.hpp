// A file that keeps what ranks write.
#pragma once

#include <string>
#include <string_view>

#include "core/system/file_descriptor.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/log_directory.hpp"

namespace ddp::launcher {

/// Problems are reported once, on the console; the job goes on without the file.
class LogFile {
 public:
  LogFile() = default;  ///< none
  /// `append`: after what is there already.
  LogFile(Console& console, LogDirectory const& directory, std::string const& name, bool append);

  void write(Console& console, std::string_view bytes);
  void close() noexcept { file_.reset(); }
  /// Why the file lacks a part of what was written; empty if it has all.
  [[nodiscard]] std::string const& problem() const noexcept { return problem_; }

 private:
  void give_up(Console& console, std::string problem);

  std::string path_;
  FileDescriptor file_;
  std::string problem_;
};

}  // namespace ddp::launcher
