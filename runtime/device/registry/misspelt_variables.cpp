#include "device/registry/misspelt_variables.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "core/suggestion.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::array<std::string_view, 23> kRead{
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",  "DDP_BACKEND",
    "DDP_COMM_SMS",         "DDP_CONTROL",        "DDP_ERROR_DIRECTORY",
    "DDP_ERROR_FILE",       "DDP_FLIGHT",         "DDP_FLIGHT_DIR",
    "DDP_GENERATION",       "DDP_REPLACEMENT",    "DDP_INIT_TIMEOUT",
    "DDP_INVITATION",       "DDP_JOB_ID",         "DDP_LOG",
    "DDP_MIN_RANKS",        "DDP_STATISTICS",     "DDP_STDOUT",
    "DDP_TERMINAL",         "DDP_TIMEOUT",        "DDP_TRACE",
    "DDP_SURVIVE",          "DDP_VIRTUAL_DEVICES"};

std::string upper(std::string_view name) {
  std::string letters(name);
  std::transform(letters.begin(), letters.end(), letters.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return letters;
}

/// The variable that was meant; empty for a name that is read, and for one that resembles none of them.
std::string_view meant_by(std::string const& name) {
  if (std::find(kRead.begin(), kRead.end(), name) != kRead.end()) return {};
  std::string const letters = upper(name);
  std::string_view best;
  std::size_t best_distance = SIZE_MAX;
  for (std::string_view const known : kRead) {
    std::size_t const distance = edit_distance(letters, known);
    // Short names resemble many others: at most one letter in eight may differ.
    if (distance <= (known.size() + 1) / 8 && distance < best_distance) {
      best = known;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

std::vector<std::string> misspelt_variables(std::span<std::string const> names) {
  std::vector<std::string> sentences;
  for (std::string const& name : names) {
    std::string_view const meant = meant_by(name);
    if (meant.empty()) continue;
    sentences.push_back(text(name, " is set, and ", meant.starts_with("CUDA") ? "CUDA" : "ddp",
                             " does not read it; did you mean ", meant, "?"));
  }
  return sentences;
}

std::vector<std::string> variable_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view const line = *entry;
    names.emplace_back(line.substr(0, line.find('=')));
  }
  return names;
}

void warn_of_misspelt_variables() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("DDP_CONTROL") != nullptr) return;
    for (std::string const& sentence : misspelt_variables(variable_names())) log(LogLevel::warning, sentence);
  });
}

}  // namespace ddp
