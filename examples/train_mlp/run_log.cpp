#include "train_mlp/run_log.hpp"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace train_mlp {

RunLog::RunLog(std::filesystem::path const& file, bool append) : name_(file.string()) {
  errno = 0;
  out_.open(file, append ? std::ios::app : std::ios::trunc);
  if (!out_) {
    int const reason = errno;
    throw RunLogError("--log-json: " + name_ + " cannot be written: " + std::strerror(reason));
  }
}

void RunLog::write(EpochRecord const& record) {
  write_line(nlohmann::json{{"epoch", record.epoch},
                            {"steps", record.steps},
                            {"loss", record.loss},
                            {"test_loss", record.test_loss},
                            {"test_accuracy", record.test_accuracy},
                            {"learning_rate", record.learning_rate},
                            {"samples_per_second", record.samples_per_second},
                            {"seconds", record.seconds}}
                 .dump());
}

void RunLog::write(FinalRecord const& record) {
  nlohmann::json parameters = nlohmann::json::array();
  for (ParameterRecord const& parameter : record.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"norm", parameter.norm},
                          {"sum", parameter.sum},
                          {"hash", parameter.hash}});
  }
  write_line(nlohmann::json{{"final", true},
                            {"test_accuracy", record.test_accuracy},
                            {"test_loss", record.test_loss},
                            {"ranks", record.ranks},
                            {"device", record.device},
                            {"samples_per_second", record.samples_per_second},
                            {"seconds", record.seconds},
                            {"parameters", parameters}}
                 .dump());
}

void RunLog::write_line(std::string const& line) {
  if (!out_.is_open()) return;
  errno = 0;
  out_ << line << '\n' << std::flush;
  int const reason = errno;
  if (!out_) throw RunLogError("--log-json: " + name_ + " cannot be written: " + std::strerror(reason));
}

}  // namespace train_mlp
