// Trains the network of train_mlp in one process, over all GPUs, or over virtual CPU devices.
#include <algorithm>
#include <charconv>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "data_parallel/trainer.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "train_mlp/options.hpp"
#include "train_mlp/progress.hpp"
#include "train_mlp/run_log.hpp"
#include "train_mlp/summary.hpp"

namespace data_parallel {
namespace {

using train_mlp::UsageError;

constexpr std::size_t kMostCpus = 1024;

// Takes "--cpus N" out of the arguments.
std::optional<std::size_t> take_cpus(std::vector<std::string>& arguments) {
  auto const option = std::find(arguments.begin(), arguments.end(), "--cpus");
  if (option == arguments.end()) return std::nullopt;
  std::string const given = option + 1 == arguments.end() ? "" : *(option + 1);
  std::size_t count = 0;
  auto const [rest, error] = std::from_chars(given.data(), given.data() + given.size(), count);
  if (error != std::errc{} || rest != given.data() + given.size() || count == 0 || count > kMostCpus) {
    throw UsageError(ddp::text("--cpus: expected a number from 1 to ", kMostCpus, ", found \"", given, "\""));
  }
  arguments.erase(option, option + 2);
  return count;
}

std::string help_text() {
  return "data_parallel [--cpus N] [options of train_mlp but those of checkpoints]\n\n"
         "Trains as train_mlp does, in one process: each batch is split over all GPUs that "
         "CUDA_VISIBLE_DEVICES\n"
         "leaves, with a replica of the network and a thread each; with --cpus N, and where there is no GPU, "
         "over N\n"
         "virtual CPU devices (default: 1). train_mlp --help lists the options. Exit codes as there.\n";
}

std::vector<ddp::Device> devices(std::optional<std::size_t> cpus) {
  bool const gpus = !cpus && !ddp::list_logical_devices(ddp::DeviceKind::cuda).empty();
  if (cpus) {
    ddp::VirtualDevices cut{.kind = ddp::DeviceKind::cpu};
    cut.limits.resize(*cpus);
    ddp::set_logical_devices(cut);
  }
  std::vector<ddp::Device> all;
  for (auto const& each : ddp::list_logical_devices(gpus ? ddp::DeviceKind::cuda : ddp::DeviceKind::cpu))
    all.push_back(each.device);
  return all;
}

int run(train_mlp::Options const& options, std::optional<std::size_t> cpus) {
  data::DataSet set;
  train_mlp::RunLog log;
  try {
    set = train_mlp::load(options);
    if (!options.log_json.empty()) log = train_mlp::RunLog(options.log_json);
  } catch (data::InputError const& error) {
    auto const problem = train_mlp::describe(error, options);
    std::cerr << "data_parallel: " << problem.message << '\n';
    return problem.exit_code;
  } catch (train_mlp::RunLogError const& error) {
    std::cerr << "data_parallel: " << error.what() << '\n';
    return train_mlp::kExitCannotCreate;
  }
  train_mlp::Progress progress(train_mlp::Progress::detect());
  auto const result = train(devices(cpus), set, options, progress, log);
  progress.print(ddp::text("final: test accuracy ", std::fixed, std::setprecision(4), result.test_accuracy,
                           ", ", result.ranks, " replicas, ", result.device, ", ", std::setprecision(1),
                           result.seconds, " s"));
  return 0;
}

}  // namespace
}  // namespace data_parallel

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    auto const cpus = data_parallel::take_cpus(arguments);
    auto const options = train_mlp::parse_options(arguments);
    if (!options) {
      std::cout << data_parallel::help_text();
      return 0;
    }
    if (!options->checkpoint.empty())
      throw train_mlp::UsageError("--checkpoint: data_parallel writes none; train_mlp does");
    return data_parallel::run(*options, cpus);
  } catch (train_mlp::UsageError const& error) {
    std::cerr << "data_parallel: " << error.what() << ". data_parallel --help says what there is\n";
    return train_mlp::kExitUsage;
  } catch (std::exception const& error) {
    std::cerr << "data_parallel: " << error.what() << '\n';
    return 1;
  }
}
