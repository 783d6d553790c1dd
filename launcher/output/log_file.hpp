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
  /// Whether it has all that was written.
  explicit operator bool() const noexcept { return static_cast<bool>(file_); }

 private:
  std::string path_;
  FileDescriptor file_;
};

}  // namespace ddp::launcher
