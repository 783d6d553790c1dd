// A library that is NCCL and MPI to those who ask for versions only. FAKE_NCCL is NCCL's number (none: it
// refuses), FAKE_MPI what MPI says of itself. "killed" ends the process that asks, "hangs" never answers,
// "noisy" writes to its stdout and stderr first.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string told(char const* name) {
  char const* const value = std::getenv(name);
  std::string words = value == nullptr ? "" : value;
  if (words == "killed") raise(SIGKILL);
  if (words == "hangs") pause();
  if (words.starts_with("noisy ")) {
    std::fputs("out\n", stdout);
    std::fflush(stdout);
    std::fputs("err\n", stderr);
    words.erase(0, 6);
  }
  return words;
}

}  // namespace

// NCCL's and MPI's own names.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  std::string const words = told("FAKE_NCCL");
  if (words.empty()) return 1;
  *version = std::stoi(words);
  return 0;
}
extern "C" __attribute__((visibility("default"))) int MPI_Get_library_version(char* version, int* length) {
  std::string const words = told("FAKE_MPI");
  std::memcpy(version, words.c_str(), words.size() + 1);
  *length = static_cast<int>(words.size());
  return 0;
}
// NOLINTEND(readability-identifier-naming)
