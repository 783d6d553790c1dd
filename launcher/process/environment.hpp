// Environment variables, those of this process, and its host's name.
#pragma once

#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddp::launcher {

/// Gives a variable's value; nullopt where it is unset.
using Lookup = std::function<std::optional<std::string>(std::string const& name)>;

using Variables = std::vector<std::pair<std::string, std::string>>;

inline void append(Variables& variables, Variables const& more) {
  variables.insert(variables.end(), more.begin(), more.end());
}

[[nodiscard]] inline std::optional<std::string> environment_variable(std::string const& name) {
  char const* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// Empty where the host has none.
[[nodiscard]] inline std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size()) == 0 ? name.data() : "";
}

/// "NAME=value" each.
[[nodiscard]] inline std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

}  // namespace ddp::launcher
