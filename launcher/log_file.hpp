// A file that keeps what ranks write.
#pragma once

#include <string>
#include <string_view>

#include "core/file_descriptor.hpp"
#include "launcher/console.hpp"

namespace ddp::launcher {

/// Problems are said once, on the console; the job goes on without the file.
class LogFile {
 public:
  LogFile() = default;  ///< none
  /// `append`: behind what is there already.
  LogFile(Console& console, std::string path, bool append);

  void write(Console& console, std::string_view bytes);

 private:
  std::string path_;
  FileDescriptor file_;
};

}  // namespace ddp::launcher
