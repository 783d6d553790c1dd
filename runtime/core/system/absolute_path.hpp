// Paths that stay valid after chdir().
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

/// `path` from the present working directory, so that it leads to the same place after chdir(). "" stays "".
/// Throws Error(io).
[[nodiscard]] inline std::string absolute_path(std::filesystem::path const& path) {
  if (path.empty()) return {};
  std::error_code problem;
  auto const whole = std::filesystem::absolute(path, problem);
  if (problem)
    throw_errno(text("asking for the current folder, from which ", path, " leads"), problem.value());
  return whole.string();
}

}  // namespace ddp
