// Fills in the template of a page, from stdin to stdout: a line that names a part of --help becomes that
// part.
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>

#include "ddp/core/text.hpp"
#include "launcher/options/help.hpp"

namespace ddp::launcher {
namespace {

/// For man: - and ' as they are typed.
std::string escaped(std::string_view words) {
  std::string result = words.starts_with('.') ? "\\&" : "";
  for (char const c : words) {
    if (c == '-' || c == '\\') result += '\\';
    result += c == '\'' ? "\\(aq" : std::string(1, c);
  }
  return result;
}

/// Bold is what is typed as it stands; what begins with a capital stands for something else.
std::string value_for_man(std::string const& value) {
  Classic<std::istringstream> alternatives(value);
  std::string result;
  for (std::string each; std::getline(alternatives, each, '|');) {
    bool const is_name = each[0] >= 'A' && each[0] <= 'Z';
    result += text(result.empty() ? " " : "|", is_name ? "\\fI" : "\\fB", escaped(each), "\\fR");
  }
  return result;
}

void print_for_man(HelpSection const& section) {
  constexpr std::size_t kWidth = 70;
  for (HelpEntry const& entry : section.entries) {
    std::cout << ".TP\n\\fB" << escaped(join(entry.names, ", ")) << "\\fR" << value_for_man(entry.value)
              << "\n";
    std::string words = entry.words;
    for (std::size_t end = 0; (end = words.find(". ")) != std::string::npos;) words[end + 1] = '\n';
    Classic<std::istringstream> sentences(words);
    for (std::string each; std::getline(sentences, each);) {
      for (std::string const& line : wrapped(each, kWidth)) std::cout << escaped(line) << "\n";
    }
  }
}

void print_for_man(std::vector<HelpSection> const& sections) {
  for (HelpSection const& section : sections) {
    std::cout << ".SS " << escaped(section.title) << "\n";
    print_for_man(section);
  }
}

void print_for_bash() {
  for (HelpSection const& section : option_help()) {
    for (HelpEntry const& entry : section.entries) {
      for (std::string const& name : entry.names)
        std::cout << "    [" << name << "]='" << entry.value << "'\n";
    }
  }
}

void fill_in() {
  for (std::string line; std::getline(std::cin, line);) {
    if (line == ".\\\" the options") {
      print_for_man(option_help());
    } else if (line == ".\\\" the environment") {
      print_for_man(environment_help());
    } else if (line == ".\\\" the exit codes") {
      print_for_man(exit_code_help());
    } else if (line == "    # the options") {
      print_for_bash();
    } else {
      std::cout << line << "\n";
    }
  }
}

}  // namespace
}  // namespace ddp::launcher

int main() { ddp::launcher::fill_in(); }
