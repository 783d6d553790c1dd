// Which of the libraries that decide about speed this process has loaded.
#pragma once

#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace compare {

/// Paths of NCCL, cuBLAS, cuDNN and CUDA's runtime.
inline std::set<std::string> loaded_libraries() {
  std::regex const wanted(R"((/\S*/(libnccl|libcublas|libcudnn|libcudart)\.so\S*)$)");
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> found;
  std::smatch match;
  for (std::string line; std::getline(maps, line);) {
    if (std::regex_search(line, match, wanted)) found.insert(match[1]);
  }
  return found;
}

}  // namespace compare
