// The ranks' programs preload this, so that their stdout is written line by line: see line_buffering.hpp.
// Linked with nothing, not even the C library: it uses the C library that the program has loaded.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

/// Reads digits and moves past them.
unsigned long long number_at(char const*& at) {
  unsigned long long number = 0;
  for (; *at >= '0' && *at <= '9'; ++at) number = number * 10 + static_cast<unsigned long long>(*at - '0');
  return number;
}

/// DDP_STDOUT is "device:inode" of the rank's pipe. What a rank's programs write to files, or to each other,
/// stays buffered.
[[gnu::constructor]] void buffer_lines() {
  char const* place = std::getenv("DDP_STDOUT");
  struct stat status {};
  if (place == nullptr || fstat(STDOUT_FILENO, &status) != 0) return;
  bool const same_device = number_at(place) == status.st_dev;
  if (!same_device || *place != ':') return;
  if (number_at(++place) == status.st_ino) std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

}  // namespace
