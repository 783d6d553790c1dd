// A driver's library that lists the GPUs of the test's choice; fake_nvml.cpp says how they are written.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace ddp::testing {

/// Where the fake libnvidia-ml.so.1 is.
inline constexpr char const* kFakeNvml = FAKE_NVML_LIBRARY;

/// Environment in which a process that loads NVML finds `gpus`.
[[nodiscard]] inline std::vector<std::string> with_gpus(std::string const& gpus,
                                                        std::vector<std::string> more = {}) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");  // tests of the CPU see no GPU (DdpTest.cmake); these see what is told
  std::string const library = kFakeNvml;
  char const* const path = std::getenv("LD_LIBRARY_PATH");
  more.push_back("LD_LIBRARY_PATH=" + library.substr(0, library.rfind('/')) +
                 (path == nullptr ? "" : std::string(":") + path));
  more.push_back("FAKE_NVML=" + gpus);
  return more;
}

}  // namespace ddp::testing
