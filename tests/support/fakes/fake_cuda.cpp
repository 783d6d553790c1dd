// A libcuda.so.1 that lists the GPUs of FAKE_CUDA, "b a": the letters that fake_nvml's UUIDs repeat, in the
// order in which CUDA would count them. "hangs" never answers, "killed" ends the process. Without cuInit() it
// refuses.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kNotInitialised = 3;  // CUDA_ERROR_NOT_INITIALIZED
bool initialised = false;

std::vector<char> gpus() {
  char const* const told = std::getenv("FAKE_CUDA");
  std::istringstream words(told == nullptr ? "" : told);
  std::vector<char> letters;
  for (char letter = 0; words >> letter;) letters.push_back(letter);
  return letters;
}

}  // namespace

// CUDA's own names.
// NOLINTBEGIN(readability-identifier-naming)
#define FAKE extern "C" __attribute__((visibility("default"))) int

FAKE cuInit(unsigned) {
  char const* const told = std::getenv("FAKE_CUDA");
  std::string const what = told == nullptr ? "" : told;
  if (what == "hangs") pause();
  if (what == "killed") raise(SIGKILL);
  // An answer that depends on what is visible would be no answer.
  if (std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) return 100;  // CUDA_ERROR_NO_DEVICE
  initialised = true;
  return 0;
}
FAKE cuDeviceGetCount(int* count) {
  if (!initialised) return kNotInitialised;
  *count = static_cast<int>(gpus().size());
  return 0;
}
FAKE cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
FAKE cuDeviceGetUuid(std::array<unsigned char, 16>* uuid, int device) {
  int const digit = gpus().at(static_cast<std::size_t>(device)) - 'a' + 10;
  uuid->fill(0);
  for (std::size_t i = 0; i < 4; ++i) (*uuid)[i] = static_cast<unsigned char>(digit * 16 + digit);
  return 0;
}
// NOLINTEND(readability-identifier-naming)
