#include "launcher/control_directory.hpp"

#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/exit_code.hpp"

namespace ddp::launcher {

ControlDirectory::ControlDirectory() {
  char const* const temporary = std::getenv("TMPDIR");
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    throw_errno("asking for a random number", errno);
  }
  std::array<char, 17> name{};
  std::snprintf(name.data(), name.size(), "%016llx", static_cast<unsigned long long>(number));
  // Absolute, since ranks may change their directory before they connect.
  std::filesystem::path const parent =
      std::filesystem::absolute(temporary != nullptr && temporary[0] != '\0' ? temporary : "/tmp");
  path_ = text(parent.string(), "/ddp-", name.data());
}

void ControlDirectory::make() {
  if (mkdir(path_.c_str(), 0700) != 0) {
    throw ExitError(exit_code::kCannotCreate, text("cannot make the control directory ", path_, ": ",
                                                   std::strerror(errno), "; TMPDIR chooses another place"));
  }
  made_ = true;
}

void ControlDirectory::remove() noexcept {
  if (!made_) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  made_ = false;
}

}  // namespace ddp::launcher
