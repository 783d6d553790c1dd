// The main function of a fuzz target where no fuzzer drives it: gives it each input of the folders named. A
// target ends the process where a property does not hold.
//
// Inputs with unprintable bytes are kept as text: files *.hex of hexadecimal digits, with blanks and comments
// behind #.
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "fuzz/property.hpp"

namespace {

namespace fs = std::filesystem;

std::string read(fs::path const& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::optional<std::string> from_hex(std::string const& text) {
  std::string digits;
  bool comment = false;
  for (char const c : text) {
    comment = c == '#' || (comment && c != '\n');
    if (comment || std::isspace(static_cast<unsigned char>(c)) != 0) continue;
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    digits += c;
  }
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(at, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  int replayed = 0;
  for (int i = 1; i < argc; ++i) {
    std::set<fs::path> files;
    if (fs::is_directory(argv[i])) files.insert(fs::directory_iterator(argv[i]), {});
    for (fs::path const& file : files) {
      std::optional<std::string> input = read(file);
      if (file.extension() == ".hex") input = from_hex(*input);
      if (!input) {
        std::cerr << file.string() << ": expected pairs of hexadecimal digits\n";
        return 1;
      }
      std::cout << file.string() << ": " << input->size() << " B" << std::endl;  // before it may crash
      LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(input->data()), input->size());
      ++replayed;
    }
  }
  std::cout << replayed << " inputs replayed\n";
  return replayed > 0 ? 0 : 1;
}
