// A new process in the place of a lost rank gets module, buffers and optimizer from the others (R26). Ranks
// are threads, on CPUs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/rebuild_newcomers.hpp"

namespace ddp::testing {
namespace {

// Weights, and averages of the batches. Any step's weights depend on the optimizer's state.
std::string all_of(Training const& training) {
  std::string all = bytes_of(*training.net);
  for (auto const& each : training.net->buffers())
    all.append(static_cast<char const*>(each.const_data_ptr()), each.nbytes());
  return all;
}

// `told`: of the optimizer too.
template <class Optimizer, class Options>
void expect_as_if_none_were_lost(Options const& options, bool told = true) {
  MakeOptimizer const make = [&](std::vector<at::Tensor> of) {
    return std::make_unique<Optimizer>(std::move(of), options);
  };
  for (int const victim : {0, 1, 2}) {
    SCOPED_TRACE(victim);
    auto const ends = ends_with_a_newcomer(
        victim, 4, [&](World& world, bool) { return std::make_unique<Training>(world, make); },
        [&](Training& training) {
          std::vector<Replicated::Part> parts{&training.done};
          if (told) parts.push_back(libtorch::replicated(training.world, *training.optimizer));
          return std::make_unique<Replicated>(training.world, parts);
        },
        all_of);
    EXPECT_EQ(ends.size(), 6U);
    EXPECT_EQ(std::set<std::string>(ends.begin(), ends.end()).size() == 1, told);
  }
}

TEST(LibtorchRebuild, R26ANewcomerTrainsWithTheModuleAndTheOptimizerOfTheOthers) {
  expect_as_if_none_were_lost<libtorch::AdamW>(torch::optim::AdamWOptions(1e-2));
  expect_as_if_none_were_lost<libtorch::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9));
  // Without that state the ends differ.
  expect_as_if_none_were_lost<libtorch::AdamW>(torch::optim::AdamWOptions(1e-2), false);
}

}  // namespace
}  // namespace ddp::testing
