#include "launcher/options/torchrun.hpp"

#include <filesystem>

#include "ddp/core/text.hpp"
#include "launcher/plan/program.hpp"

namespace ddp::launcher {

std::vector<std::string> started_command(Options const& options) {
  std::string const& name = options.command.front();
  std::error_code ignored;
  bool const is_file = name.ends_with(".py") && std::filesystem::is_regular_file(name, ignored);
  if (!options.module && !is_file) return options.command;
  static_cast<void>(find_program("python3", text(name, " is run with python3: ")));
  std::vector<std::string> words{"python3", "-u"};
  if (options.module) words.emplace_back("-m");
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

}  // namespace ddp::launcher
