#include "launcher/process/line_buffering.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr char const* kAnyLinkOrder = "verify_asan_link_order=0";

/// `value` with `word` appended, unless it is in it already.
std::string with(std::optional<std::string> const& value, std::string const& word) {
  if (!value || value->empty()) return word;
  return value->find(word) == std::string::npos ? text(*value, ":", word) : *value;
}

}  // namespace

std::string library_to_preload(std::filesystem::path const& launcher, std::filesystem::path const& installed,
                               std::string const& file) {
  for (auto const& folder : {launcher.parent_path(), launcher.parent_path() / installed}) {
    std::string const path = (folder / file).lexically_normal().string();
    if (access(path.c_str(), R_OK) == 0 && path.find_first_of(" :") == std::string::npos) return path;
  }
  return {};
}

Variables line_buffering(std::string const& library, Lookup const& inherited) {
  Variables variables;
  if (!inherited("PYTHONUNBUFFERED")) variables.emplace_back("PYTHONUNBUFFERED", "1");
  if (library.empty()) return variables;
  variables.emplace_back("LD_PRELOAD", with(inherited("LD_PRELOAD"), library));
  variables.emplace_back("ASAN_OPTIONS", with(inherited("ASAN_OPTIONS"), kAnyLinkOrder));
  return variables;
}

std::string place_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? text(status.st_dev, ":", status.st_ino) : std::string{};
}

}  // namespace ddp::launcher
