// A library that is cuDNN to those who ask for its version only: FAKE_CUDNN is cuDNN's number.
#include <cstddef>
#include <cstdlib>
#include <string>

// cuDNN's own name.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" __attribute__((visibility("default"))) std::size_t cudnnGetVersion() {
  char const* const value = std::getenv("FAKE_CUDNN");
  return value == nullptr ? 0 : std::stoul(value);
}
