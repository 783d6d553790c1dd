// Trains a network on Fashion-MNIST, alone or as one rank of many.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "train_mlp/options.hpp"
#include "train_mlp/progress.hpp"
#include "train_mlp/run_log.hpp"
#include "train_mlp/summary.hpp"
#include "train_mlp/trainer.hpp"

namespace train_mlp {
namespace {

// The problem of the first rank that has one, the same on every rank: so that all stop, and one speaks.
std::optional<Problem> agree(ddp::World const& world, std::optional<Problem> const& mine) {
  std::string const said = mine ? ddp::text(mine->exit_code, " ", mine->message) : "";
  auto const all = world.control().all_gather("train_mlp/ready", said, world.members(),
                                              ddp::Deadline::after(world.options().timeout));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    std::size_t const space = all[rank].find(' ');
    std::string const message = all[rank].substr(space + 1);
    bool const everywhere =
        std::all_of(all.begin(), all.end(), [&](auto const& one) { return one == all[rank]; });
    return Problem{std::stoi(all[rank].substr(0, space)),
                   everywhere ? message : ddp::text("rank ", rank, ": ", message)};
  }
  return std::nullopt;
}

int run(Options const& options) {
  ddp::World const world = ddp::World::init();
  bool const first = world.rank() == 0 && !world.is_newcomer();

  data::DataSet set;
  RunLog log;
  std::optional<Problem> problem;
  try {
    set = load(options);
    if (first && !options.log_json.empty()) log = RunLog(options.log_json, options.resume);
  } catch (data::InputError const& error) {
    problem = describe(error, options);
  } catch (RunLogError const& error) {
    problem = Problem{kExitCannotCreate, error.what()};
  }
  problem = agree(world, problem);
  if (problem) {
    if (first) std::cerr << "train_mlp: " << problem->message << '\n';
    return problem->exit_code;
  }

  Progress progress(first ? Progress::detect() : Progress::Mode::silent);
  End const end = train(world, set, options, progress, log);
  if (auto const* const early = std::get_if<EarlyEnd>(&end)) {
    if (first) std::cerr << "train_mlp: " << early->message << '\n';
    return early->exit_code;
  }
  auto const& result = *std::get_if<FinalRecord>(&end);
  progress.print(ddp::text("final: test accuracy ", std::fixed, std::setprecision(4), result.test_accuracy,
                           ", ", result.ranks, " ranks, ", result.device, ", ", std::setprecision(1),
                           result.seconds, " s"));
  return 0;
}

// Whether this process is the one that speaks for the job about its command line.
bool is_first() {
  try {
    return ddp::RankInfo::from_environment().rank == 0;
  } catch (ddp::Error const&) {
    return true;
  }
}

}  // namespace
}  // namespace train_mlp

int main(int argc, char** argv) {
  using namespace train_mlp;
  std::optional<Options> options;
  try {
    options = parse_options(std::vector<std::string>(argv + 1, argv + argc));
  } catch (UsageError const& error) {
    if (is_first()) std::cerr << "train_mlp: " << error.what() << ". train_mlp --help lists the options\n";
    return kExitUsage;
  }
  if (!options) {
    if (is_first()) std::cout << help_text();
    return 0;
  }
  return run(*options);
}
