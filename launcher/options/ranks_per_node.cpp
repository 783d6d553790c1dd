#include "launcher/options/ranks_per_node.hpp"

#include <algorithm>
#include <utility>

#include "ddp/core/text.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {

Options with_named_ranks(Options options, Machine const& machine) {
  PerNode const kind = std::exchange(options.per_node, PerNode::unset);
  if (kind == PerNode::unset) return options;
  int const cores = std::clamp(machine.allowed_cores, 1, kMaxRanks);
  if (kind == PerNode::cores) {
    options.cpus = cores;
    return options;
  }
  auto const visible = named_gpus(options, machine).gpus;
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
  std::vector<std::string> names;
  for (std::size_t i = 0; i < wanted; ++i) names.push_back(visible[i].uuid);
  options.gpus = join(names, ",");
  return options;
}

}  // namespace ddp::launcher
