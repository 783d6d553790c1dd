// Runs of the example train_mlp under ddp-launch.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {

/// ddp-launch's arguments: its own, then train_mlp's.
[[nodiscard]] inline std::vector<std::string> train_mlp(int ranks, std::vector<std::string> const& options,
                                                        std::vector<std::string> const& arguments) {
  std::vector<std::string> words{"--cpus", text(ranks), "--no-log-files"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", TRAIN_MLP});
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

/// The last record of --log-json.
[[nodiscard]] inline nlohmann::json last_record(std::filesystem::path const& log) {
  return nlohmann::json::parse(lines(read_file(log)).back());
}

/// Its parameters, with their hashes.
[[nodiscard]] inline nlohmann::json last_parameters(std::filesystem::path const& log) {
  return last_record(log).at("parameters");
}

}  // namespace ddp::testing
