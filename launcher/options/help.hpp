// What ddp-launch says of itself. --help, the man page and bash completion are made of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// An option, variables or an exit code.
struct HelpEntry {
  std::vector<std::string> names;
  std::string words;
  std::string value = {};  ///< the name of an option's value; empty where it takes none
};

struct HelpSection {
  std::string title;
  std::vector<HelpEntry> entries;
};

/// One for each heading of the options.
[[nodiscard]] std::vector<HelpSection> option_help();
[[nodiscard]] std::vector<HelpSection> environment_help();
[[nodiscard]] HelpSection exit_code_help();

/// Broken at blanks into lines of at most `width`.
[[nodiscard]] std::vector<std::string> wrapped(std::string_view words, std::size_t width);

[[nodiscard]] std::string help_text();

}  // namespace ddp::launcher
