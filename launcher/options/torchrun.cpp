#include "launcher/options/torchrun.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "ddp/core/text.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/plan/program.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {

std::vector<std::string> started_command(Options const& options) {
  std::string const& name = options.command.front();
  std::error_code ignored;
  bool const is_file = name.ends_with(".py") && std::filesystem::is_regular_file(name, ignored);
  if (!options.module && !is_file) return options.command;
  static_cast<void>(find_program("python3", text(name, " is run with python3: ")));
  std::vector<std::string> words{"python3", "-u"};
  if (options.module) words.emplace_back("-m");
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

Options with_named_ranks(Options options, Machine const& machine) {
  PerNode const kind = std::exchange(options.per_node, PerNode::unset);
  if (kind == PerNode::unset) return options;
  int const cores = std::clamp(machine.allowed_cores, 1, kMaxRanks);
  if (kind == PerNode::cores) {
    options.cpus = cores;
    return options;
  }
  auto visible = named_gpus(options, machine).gpus;
  if (visible.empty()) {
    if (!machine.gpu_problem.empty()) {
      throw ExitError(exit_code::kNoDevice, text("--nproc-per-node: ", machine.gpu_problem,
                                                 "; --cpus N starts N CPU ranks all the same"));
    }
    options.cpus = kind == PerNode::count ? options.ranks_per_node : cores;
    return options;
  }
  if (kind == PerNode::cores_without_gpus) return options;
  auto const wanted = static_cast<std::size_t>(*options.ranks_per_node);
  if (wanted > visible.size()) {
    throw ExitError(
        exit_code::kNoDevice,
        text("--nproc-per-node ", wanted, ": ", visible.size(), visible.size() == 1 ? " GPU is" : " GPUs are",
             " visible; --virtual N lets N ranks share each, --cpus N starts N CPU ranks"));
  }
  visible.resize(wanted);
  options.gpus = join(visible, ",");
  return options;
}

}  // namespace ddp::launcher
