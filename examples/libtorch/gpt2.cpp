// Trains GPT-2 with libtorch on any number of ranks: ddp-launch gpt2 --dtype amp --text book.txt
//
// Alone or on many ranks, --batch sequences a step are the same training.
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/command_line.hpp"
#include "libtorch/models.hpp"
#include "libtorch/training.hpp"

namespace {

namespace po = boost::program_options;
using command_line::expect;

struct Options {
  models::Gpt2Sizes sizes;
  std::int64_t batch = 0;
  std::int64_t steps = 0;
  std::int64_t report = 0;
  std::uint64_t seed = 0;
  double learning_rate = 0;
  std::string dtype;
  std::string text;
  bool graph = false;
  bool shard = false;
  bool survive = false;
};

po::options_description describe(Options& options) {
  using command_line::count;
  po::options_description all("Options", 100);
  auto add = all.add_options();
  add("layers", count(options.sizes.layers, 12), "transformer blocks");
  add("width", count(options.sizes.width, 768), "of the embedding; a head for each 64");
  add("context", count(options.sizes.context, 1024), "tokens of a sequence");
  add("vocabulary", count(options.sizes.vocabulary, 50257), "different tokens");
  add("batch", count(options.batch, 8), "sequences a step over all ranks together");
  add("steps", count(options.steps, 100), "steps to train");
  add("report", count(options.report, 10), "print the loss after so many steps");
  add("text", po::value(&options.text)->value_name("FILE"), "learn its bytes; made-up tokens otherwise");
  add("dtype", po::value(&options.dtype)->value_name("fp32|amp|bf16")->default_value("fp32"),
      "amp: autocast");
  add("graph", po::bool_switch(&options.graph), "replay steps as one CUDA graph, on GPUs");
  add("shard", po::bool_switch(&options.shard), "each rank keeps and updates a part of the optimizer");
  add("survive", po::bool_switch(&options.survive), "go on when a rank is lost, under ddp-launch --survive");
  add("lr", po::value(&options.learning_rate)->default_value(3e-4, "3e-4"), "learning rate of AdamW");
  add("seed", po::value(&options.seed)->default_value(1), "of initial weights and batches");
  return all;
}

void check(Options& options) {
  auto& sizes = options.sizes;
  expect(options.dtype == "fp32" || options.dtype == "amp" || options.dtype == "bf16",
         "fp32, amp or bf16 for --dtype, found \"" + options.dtype + '"');
  expect(
      std::min({sizes.layers, sizes.width, sizes.context, options.batch, options.steps, options.report}) > 0,
      "numbers from 1 on");
  expect(sizes.vocabulary >= 256, "--vocabulary from 256 on");
  expect(sizes.width <= 64 || sizes.width % 64 == 0, "a multiple of 64, or less, for --width");
  expect(!options.survive || !options.shard, "--survive without --shard, where a lost rank's part is lost");
  sizes.heads = std::max<std::int64_t>(sizes.width / 64, 1);
}

/// All tokens that there are: the file's bytes, or a made-up sequence in which each token mostly names the
/// next.
torch::Tensor read_tokens(Options const& options) {
  std::vector<std::int64_t> tokens;
  if (options.text.empty()) {
    auto const size = static_cast<std::uint64_t>(options.sizes.vocabulary);
    std::uint64_t noise = options.seed;
    for (std::uint64_t token = 0; tokens.size() < (1U << 20);) {
      noise = noise * 6364136223846793005U + 1442695040888963407U;
      token = (noise >> 33) % 8 == 0 ? (noise >> 36) % size : (token * 5 + 3) % size;
      tokens.push_back(static_cast<std::int64_t>(token));
    }
  } else {
    std::ifstream file(options.text, std::ios::binary);
    std::vector<char> const bytes{std::istreambuf_iterator<char>(file), {}};
    for (char const byte : bytes) tokens.push_back(static_cast<unsigned char>(byte));
  }
  expect(static_cast<std::int64_t>(tokens.size()) > options.sizes.context + 1,
         "more bytes than --context in \"" + options.text + '"');
  return torch::tensor(tokens);
}

void train(Options const& options, ddp::World world) {
  expect(options.batch >= world.size(), "a sequence for each rank at least for --batch");
  expect(!options.graph || options.batch % world.size() == 0, "equal parts of --batch with --graph");
  torch::Device const device = ddp::libtorch::device(world);
  torch::manual_seed(options.seed);
  training::use_fast_kernels();
  models::Gpt2 net(options.sizes);
  net->to(device, options.dtype == "bf16" ? torch::kBFloat16 : torch::kFloat32);
  ddp::libtorch::DistributedDataParallelOptions how;
  if (options.shard) how.runtime.sharding = ddp::Sharding::optimizer;
  ddp::libtorch::DistributedDataParallel model(world, *net, how);  // every rank has rank 0's weights
  torch::optim::AdamWOptions const settings(options.learning_rate);
  std::optional<ddp::libtorch::AdamW> optimizer;
  std::optional<ddp::libtorch::ShardedOptimizer> sharded;
  if (options.shard) {
    sharded.emplace(model,
                    [&](auto groups) { return std::make_unique<ddp::libtorch::AdamW>(groups, settings); });
  } else {
    optimizer.emplace(net->parameters(), settings);
  }

  torch::Tensor const tokens = read_tokens(options);
  auto const window = torch::arange(options.sizes.context + 1);
  training::Report report(world, options.report, options.steps);
  torch::Tensor batch;  // a graph has recorded where it lies
  torch::Tensor loss;
  auto const step_once = [&] {
    net->zero_grad();
    {
      training::Autocast const autocast(device, options.dtype == "amp");
      loss = net->loss(batch.slice(1, 0, -1), batch.slice(1, 1));
    }
    loss.backward();  // gradients travel meanwhile
    sharded ? sharded->step() : static_cast<void>(optimizer->step());
  };
  std::optional<ddp::libtorch::StepGraph> graph;
  if (options.graph) graph.emplace(model, step_once);
  std::int64_t step = 0;  // so many are done
  std::optional<ddp::Replicated> alike;
  if (options.survive) alike = ddp::Replicated(world, {ddp::libtorch::replicated(world, *optimizer), &step});
  while (step < options.steps) try {
      // Every rank draws the starts of all sequences, by the step's number, and takes its part.
      auto const random =
          at::make_generator<at::CPUGeneratorImpl>(options.seed * 1000003 + static_cast<std::uint64_t>(step));
      auto const starts = torch::randint(tokens.size(0) - options.sizes.context, {options.batch, 1}, random);
      std::int64_t const begin = options.batch * world.rank().value() / world.size();
      std::int64_t const mine = options.batch * (world.rank().value() + 1) / world.size() - begin;
      auto const sequences = tokens.index({starts.narrow(0, begin, mine) + window});
      batch.defined() && batch.size(0) == mine ? batch.copy_(sequences) : batch = sequences.to(device);
      if (options.batch % world.size() != 0) model.set_weight(static_cast<double>(mine));
      graph ? graph->run() : step_once();
      ++step;
      auto const part = static_cast<double>(mine * world.size()) / static_cast<double>(options.batch);
      report.after(step, part == 1 ? loss : loss * part, [](double seconds) {
        std::cout << std::setprecision(2) << 1e3 * seconds << " ms a step";
      });
    } catch (ddp::CommError const& error) {
      alike ? world.rebuild(error, *alike) : throw;  // ddp-launch says who goes on
    }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return command_line::run(argc, argv, "gpt2", describe(options), [&] {
    check(options);
    train(options, ddp::World::init());
  });
}
