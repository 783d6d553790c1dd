// ddp-bench: how fast the runtime is on this machine.
#include <exception>
#include <iostream>

#include "all_reduce_bench.hpp"
#include "checkpoint_bench.hpp"
#include "data_parallel_bench.hpp"
#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/text.hpp"
#include "merge_traces.hpp"
#include "options.hpp"
#include "overlap_bench.hpp"
#include "reducer_bench.hpp"

namespace ddp::bench {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 64;  // EX_USAGE of sysexits.h

int run(Options const& options) {
  if (auto const* help = std::get_if<Help>(&options)) {
    if (RankInfo::from_environment().rank == 0) std::cout << help->text;
    return 0;
  }
  if (auto const* reducer = std::get_if<ReducerBenchOptions>(&options)) {
    // Host time of one process: more of them would only disturb each other.
    if (RankInfo::from_environment().rank == 0) run_reducer(*reducer);
    return 0;
  }
  if (auto const* merge = std::get_if<MergeTracesOptions>(&options)) {
    if (RankInfo::from_environment().rank != 0) return 0;
    auto const ranks = merge_traces(merge->folder, merge->output);
    std::cout << merge->output << ": ranks " << join(ranks, ", ") << "; open it in https://ui.perfetto.dev\n";
    return 0;
  }
  if (auto const* overlap = std::get_if<OverlapOptions>(&options)) {
    World const world = World::init({.trace = overlap->trace, .comm_sms = overlap->comm_sms});
    return run_overlap(world, *overlap) ? 0 : kExitFailure;
  }
  if (auto const* data_parallel = std::get_if<DataParallelBenchOptions>(&options)) {
    run_data_parallel(*data_parallel);
    return 0;
  }
  if (auto const* checkpoint = std::get_if<CheckpointBenchOptions>(&options)) {
    run_checkpoint(World::init(), *checkpoint);
    return 0;
  }
  World const world = World::init();
  return run_all_reduce(world, std::get<AllReduceOptions>(options)) ? 0 : kExitFailure;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  try {
    ddp::bench::Options options;
    try {
      options = ddp::bench::parse_options({argv + 1, argv + argc});
    } catch (ddp::Error const& error) {
      // On every rank: ddp-launch reports the one that ended first, with what it said.
      std::cerr << "ddp-bench: " << error.what() << '\n';
      return ddp::bench::kExitUsage;
    }
    return ddp::bench::run(options);
  } catch (std::exception const& error) {
    std::cerr << "ddp-bench: " << error.what() << '\n';
    return ddp::bench::kExitFailure;
  }
}
