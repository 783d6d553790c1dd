// The command line of train_mlp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace train_mlp {

// Exit codes: those of <sysexits.h>.
constexpr int kExitUsage = 64;
constexpr int kExitDamagedInput = 65;
constexpr int kExitNoInput = 66;
constexpr int kExitCannotCreate = 73;
constexpr int kExitIo = 74;

struct Options {
  std::filesystem::path data{};  ///< empty with `synthetic`
  bool data_given = false;       ///< whether `data` is the user's, not the default
  bool synthetic = false;
  std::optional<std::size_t> limit{};  ///< of training images
  std::vector<std::size_t> hidden{256, 128};
  std::size_t batch = 512;  ///< over all ranks together
  std::size_t epochs = 15;
  std::uint64_t seed = 1;
  double learning_rate = 0.002;
  bool graph = false;                             ///< steps as one CUDA graph
  bool shard = false;                             ///< each rank has a part of the optimizer's state
  std::filesystem::path log_json{};               ///< empty for none
  std::filesystem::path checkpoint{};             ///< a folder; empty for none
  std::optional<std::size_t> checkpoint_every{};  ///< steps; none: at the end of each epoch
  bool resume = false;
  bool survive = false;  ///< the others go on when a rank is lost
};

/// A command line that cannot be meant. The message says which option, what is expected and what was found.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The options of a command line without the program's name; nullopt when help was asked for. Throws
/// UsageError.
[[nodiscard]] std::optional<Options> parse_options(std::vector<std::string> const& arguments);

/// What --help prints.
[[nodiscard]] std::string help_text();

}  // namespace train_mlp
