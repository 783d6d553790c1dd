// The machine-readable record of a run: JSON objects, one a line.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace train_mlp {

struct EpochRecord {
  std::size_t epoch = 0;
  std::size_t steps = 0;
  double loss = 0;  ///< mean over the epoch's samples
  double test_loss = 0;
  double test_accuracy = 0;
  double learning_rate = 0;  ///< at the epoch's end
  double samples_per_second = 0;
  double seconds = 0;  ///< since training began
};

/// One parameter at the end, condensed so that runs can be compared.
struct ParameterRecord {
  std::string name;
  double norm = 0;  ///< Euclidean
  double sum = 0;
  std::string hash;  ///< of its bytes: equal values only have the same
};

struct FinalRecord {
  double test_accuracy = 0;
  double test_loss = 0;
  int ranks = 0;
  std::string device;
  double samples_per_second = 0;  ///< of training alone
  double seconds = 0;             ///< with the evaluations
  std::vector<ParameterRecord> parameters;
};

/// The file cannot be written. The message names it and the system's reason.
class RunLogError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Writes each record at once. Does nothing when it was made without a file.
class RunLog {
 public:
  RunLog() = default;
  /// Creates or empties `file`, or goes on behind what is in it. Throws RunLogError.
  explicit RunLog(std::filesystem::path const& file, bool append = false);
  /// Both throw RunLogError, when the disk is full for example.
  void write(EpochRecord const& record);
  void write(FinalRecord const& record);

 private:
  void write_line(std::string const& line);
  std::string name_;
  std::ofstream out_;
};

}  // namespace train_mlp
