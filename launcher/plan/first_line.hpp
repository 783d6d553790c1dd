// The first line of a text or a file; empty where there is none.
#pragma once

#include <fstream>
#include <string>

#include "ddp/core/text.hpp"

namespace ddp::launcher {

[[nodiscard]] inline std::string first_line(std::string const& words) {
  return words.substr(0, words.find('\n'));
}

/// For the short files of /sys and /proc.
[[nodiscard]] inline std::string first_line_of_file(std::string const& path) {
  Classic<std::ifstream> file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace ddp::launcher
