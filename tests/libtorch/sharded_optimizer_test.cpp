// A sharded optimizer (R25) of a wrapped module: the plain wrapper's numbers, and what is refused.
#include <unistd.h>

#include <filesystem>

#include "ddp/config.hpp"
#include "ddp/core/text.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Sharded = libtorch::ShardedOptimizer;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

// Images, so that weights lie in the order of their channels; a tied parameter, and a frozen one.
struct Mixed : torch::nn::Module {
  torch::nn::Conv2d images = register_module("images", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 2)));
  torch::nn::Linear tied = register_module("tied", torch::nn::Linear(8, 8));
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(8, 8));
  torch::nn::Linear sometimes = register_module("sometimes", torch::nn::Linear(8, 8));
  torch::nn::Linear never = register_module("never", torch::nn::Linear(8, 2));
  torch::Tensor empty = register_parameter("empty", torch::zeros({0, 4}));
  Mixed() {
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  torch::Tensor forward(torch::Tensor const& rows, bool both) {
    auto const hidden = images(rows.reshape({rows.size(0), 3, 2, 2})).flatten(1);
    auto const twice = tied(torch::relu(tied(frozen(hidden))));
    return both ? twice + sometimes(twice) : twice;
  }
};

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(Sharded::Groups groups)>;

template <class Optimizer, class Options>
Make maker(Options const& options) {
  return [options](Sharded::Groups const& groups) { return std::make_unique<Optimizer>(groups, options); };
}

struct Way {
  char const* name;
  Make make;
  double clip_norm = 0;
  bool zeros = false;  // zero_grad(false)
  int micro_steps = 1;
  bool all_used = false;
  std::optional<DType> reduce_dtype{};
};

enum class How { plain, in_step, in_backward };

std::vector<torch::Tensor> train(Way const& way, How how, torch::Dtype dtype = torch::kFloat) {
  torch::manual_seed(3);
  auto net = on_device(std::make_shared<Mixed>());
  net->to(dtype);
  net->images->weight.set_data(net->images->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  Wrapped::Options options = small_buckets();
  options.skip_unused = how != How::in_backward && !way.all_used;
  options.runtime.rebuild_buckets = false;
  options.runtime.clip_norm = way.clip_norm;
  options.runtime.reduce_dtype = way.reduce_dtype;
  options.runtime.sharding = how == How::plain ? Sharding::none : Sharding::optimizer;
  Wrapped wrapped(world(), *net, options);
  std::vector<torch::Tensor> weights, biases;
  for (auto const& [name, parameter] : net->named_parameters().pairs()) {
    if (!parameter.requires_grad()) continue;
    (parameter.dim() > 1 ? weights : biases).push_back(parameter);
  }
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(weights);
  groups.emplace_back(biases);
  std::unique_ptr<torch::optim::Optimizer> plain;
  std::optional<Sharded> sharded;
  if (how == How::plain) {
    plain = way.make(groups);
  } else {
    sharded.emplace(wrapped, way.make, groups,
                    how == How::in_step ? Sharded::Update::in_step : Sharded::Update::in_backward);
  }
  (plain ? *plain : sharded->inner()).param_groups()[1].options().set_lr(0.002);
  for (std::uint64_t step = 0; step < 5; ++step) {
    plain ? net->zero_grad(!way.zeros) : sharded->zero_grad(!way.zeros);
    bool const both = way.all_used || step % 2 == 0 || world().rank() == 0;
    for (int micro = 1; micro <= way.micro_steps; ++micro) {
      auto const guard = wrapped.no_sync(micro < way.micro_steps);
      auto const rows = random_rows(4 * world().size(), 12, 10 * step + static_cast<std::uint64_t>(micro));
      auto loss = loss_of(net->forward(shard(rows).to(dtype), both));
      if (way.all_used)
        loss = loss + 0.1 * loss_of(net->never(torch::ones_like(shard(rows).narrow(1, 0, 8)).to(dtype)));
      loss.backward();
    }
    plain ? static_cast<void>(plain->step()) : sharded->step();
  }
  auto const values = values_of(*net);
  expect_equal_on_ranks(values);
  return values;
}

void expect_same(std::vector<torch::Tensor> const& found, std::vector<torch::Tensor> const& expected,
                 std::string const& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t p = 0; p < found.size(); ++p)
    expect_near(found[p].to(torch::kFloat), expected[p].to(torch::kFloat), 1e-6);
}

TEST(LibtorchShardedOptimizer, R25TheNumbersAreThoseOfThePlainWrapper) {
  Way const ways[] = {{"AdamW", maker<libtorch::AdamW>(AdamWOptions(0.01))},
                      {"AdamW, zeros", maker<libtorch::AdamW>(AdamWOptions(0.01)), 0, true},
                      {"AdamW, micro-steps", maker<libtorch::AdamW>(AdamWOptions(0.01)), 0, false, 3},
                      {"AdamW, clipped", maker<libtorch::AdamW>(AdamWOptions(0.01)), 0.05},
                      {"AdamW, bf16 on the wire", maker<libtorch::AdamW>(AdamWOptions(0.01)), 0, false, 1,
                       false, DType::bf16},
                      {"SGD", maker<libtorch::SGD>(SGDOptions(0.05).momentum(0.9))},
                      {"PyTorch's Adam", maker<torch::optim::Adam>(AdamOptions(0.01))},
                      {"PyTorch's SGD", maker<torch::optim::SGD>(SGDOptions(0.05).momentum(0.9))}};
  for (Way const& way : ways) {
    auto const plain = train(way, How::plain);
    EXPECT_NE(bytes_of_all(plain),
              bytes_of_all(train({way.name, maker<libtorch::SGD>(SGDOptions(0))}, How::plain)));
    expect_same(train(way, How::in_step), plain, way.name);
  }
}

TEST(LibtorchShardedOptimizer, R25UpdatesInTheBackwardPassGiveTheSame) {
  Way const ways[] = {{"AdamW", maker<libtorch::AdamW>(AdamWOptions(0.01)), 0, false, 1, true},
                      {"AdamW, clipped", maker<libtorch::AdamW>(AdamWOptions(0.01)), 0.05, false, 2, true},
                      {"SGD", maker<libtorch::SGD>(SGDOptions(0.05).momentum(0.9)), 0, true, 1, true}};
  for (Way const& way : ways) expect_same(train(way, How::in_backward), train(way, How::plain), way.name);
}

TEST(LibtorchShardedOptimizer, R25SixteenBitParametersHaveMasters) {
  Way const way{"bf16", maker<libtorch::AdamW>(AdamWOptions(1e-4)), 0, false, 1, true, DType::f32};
  auto const before = train({"bf16", maker<libtorch::SGD>(SGDOptions(0))}, How::in_step, torch::kBFloat16);
  auto const in_step = train(way, How::in_step, torch::kBFloat16);
  EXPECT_EQ(in_step[0].scalar_type(), torch::kBFloat16);
  EXPECT_NE(bytes_of_all(in_step), bytes_of_all(before))
      << "steps below a bf16's precision add up in masters";
  EXPECT_EQ(bytes_of_all(train(way, How::in_backward, torch::kBFloat16)), bytes_of_all(in_step));
}

Wrapped::Options sharded_options() {
  Wrapped::Options options = small_buckets();
  options.runtime.sharding = Sharding::optimizer;
  return options;
}

TEST(LibtorchShardedOptimizer, R25ARankKeepsItsPartOfTheState) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, sharded_options());
  Sharded optimizer(wrapped, maker<libtorch::AdamW>(AdamWOptions(0.01)));
  loss_of(net->forward(random_rows(4, 6, 1))).backward();
  optimizer.step();
  std::int64_t kept = 0;
  for (auto const& [parameter, state] : optimizer.inner().state()) {
    kept += static_cast<libtorch::AdamWState const&>(*state).exp_avg.numel();
  }
  std::int64_t all = 0;
  for (auto const& parameter : net->parameters()) all += parameter.numel();
  double const sum = world().all_reduce_scalar(static_cast<double>(kept));
  EXPECT_EQ(sum, static_cast<double>(all)) << "every element is kept once";
  if (world().size() > 1) {
    EXPECT_LT(kept, all);
  }
}

TEST(LibtorchShardedOptimizer, R25WhatCannotBeIsRefusedOnEveryRank) {
  auto const make = maker<libtorch::AdamW>(AdamWOptions(0.01));
  auto net = on_device(std::make_shared<TwoLayers>());
  {
    Wrapped plain(world(), *net, small_buckets());
    EXPECT_THAT(message_of([&] { Sharded(plain, make); }), HasSubstr("set Options::sharding"));
  }
  Wrapped wrapped(world(), *net, sharded_options());
  bool const odd = world().rank() == world().size() - 1;
  auto const refused = [&](Sharded::Factory const& factory, Sharded::Groups const& groups = {},
                           Sharded::Update update = Sharded::Update::in_step) {
    return message_of([&] { Sharded(wrapped, factory, groups, update); });
  };
  EXPECT_THAT(refused([&](Sharded::Groups groups) { return odd ? nullptr : make(std::move(groups)); }),
              HasSubstr("returned null"));
  EXPECT_THAT(refused([&](Sharded::Groups) { return make({OptimizerParamGroup(net->parameters())}); }),
              HasSubstr("not the same"));
  EXPECT_THAT(refused(make, {OptimizerParamGroup(net->first->parameters())}), HasSubstr("is in no group"));
  EXPECT_THAT(refused(make, {OptimizerParamGroup(net->parameters()), OptimizerParamGroup(net->parameters())}),
              HasSubstr("stands twice"));
  auto strange = net->parameters();
  strange.push_back(torch::ones({2}, net->first->weight.options()));
  EXPECT_THAT(refused(make, {OptimizerParamGroup(strange)}), HasSubstr("no trained parameter"));
  EXPECT_THAT(refused(maker<torch::optim::Adam>(AdamOptions(0.01)), {}, Sharded::Update::in_backward),
              HasSubstr("must be a ddp::libtorch::FusedOptimizer"));
  if (world().size() > 1) {
    EXPECT_THAT(refused(maker<libtorch::AdamW>(AdamWOptions(odd ? 0.02 : 0.01))),
                HasSubstr("ranks have other options of their optimizers: rank 0 has learning rate 0.01"));
    EXPECT_THAT(refused(maker<libtorch::AdamW>(AdamWOptions(0.01).weight_decay(odd ? 0.1 : 0.2))),
                HasSubstr("other options"));
    Sharded::Groups groups;
    groups.emplace_back((odd ? net->first : net->second)->parameters());
    groups.emplace_back((odd ? net->second : net->first)->parameters());
    EXPECT_THAT(refused(make, groups), HasSubstr("other options"));
    EXPECT_THAT(refused(make, {}, odd ? Sharded::Update::in_backward : Sharded::Update::in_step),
                HasSubstr("other options"));
  }
  Sharded optimizer(wrapped, make);  // all that changed nothing
  loss_of(net->forward(random_rows(4, 6, 1))).backward();
  optimizer.step();
  EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("twice after synchronised step 0"));
}

TEST(LibtorchShardedOptimizer, R25MastersFollowWhatTheProgramWritesIntoParameters) {
  for (auto const update : {Sharded::Update::in_step, Sharded::Update::in_backward}) {
    auto net = on_device(std::make_shared<TwoLayers>());
    net->to(torch::kBFloat16);
    Wrapped wrapped(world(), *net, sharded_options());
    Sharded optimizer(wrapped, maker<libtorch::SGD>(SGDOptions(1e-6)), {}, update);
    for (int step = 0; step < 3; ++step) {
      if (step == 1) {
        torch::NoGradGuard const no_graph;
        for (auto& parameter : net->parameters()) parameter.fill_(0.5);
      }
      optimizer.zero_grad();
      loss_of(net->forward(random_rows(4, 6, 1).to(torch::kBFloat16))).backward();
      optimizer.step();
    }
    for (auto const& parameter : net->parameters())
      expect_near(parameter, torch::full_like(parameter, 0.5), 1e-2);
  }
}

TEST(LibtorchShardedOptimizer, R25AGradientThatTheProgramReplacedIsRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, sharded_options());
  Sharded optimizer(wrapped, maker<libtorch::SGD>(SGDOptions(0.1)));
  loss_of(net->forward(random_rows(4, 6, 1))).backward();
  net->second->bias.mutable_grad() = net->second->bias.grad() / 2;
  EXPECT_THAT(message_of([&] { optimizer.step(); }),
              HasSubstr("the gradient of parameter \"second.bias\" is another tensor than backward() left"));
}

TEST(LibtorchShardedOptimizer, R25GradientsThatAreNotClearedEndTheStep) {
  for (bool const zeros : {false, true}) {
    auto net = on_device(std::make_shared<TwoLayers>());
    Wrapped wrapped(world(), *net, sharded_options());
    Sharded optimizer(wrapped, maker<libtorch::SGD>(SGDOptions(0.1)));
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad(!zeros);
      loss_of(net->forward(random_rows(4, 6, 1))).backward();
      optimizer.step();
    }
    EXPECT_THAT(message_of([&] { loss_of(net->forward(random_rows(4, 6, 1))).backward(); }),
                HasSubstr("was not cleared since the last step"));
  }
}

TEST(LibtorchShardedOptimizer, R25ValuesThatLieElsewhereEndTheStep) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, sharded_options());
  Sharded optimizer(wrapped, maker<libtorch::SGD>(SGDOptions(0.1)));
  net->first->weight.set_data(net->first->weight.detach().clone());
  EXPECT_THAT(message_of([&] { loss_of(net->forward(random_rows(4, 6, 1))).backward(); }),
              HasSubstr("parameter \"first.weight\" lies in other memory than the runtime gave it"));
}

#if DDP_HAS_OPENSSL
// A training of six steps: plain or sharded in each half, with a checkpoint between them.
template <class Optimizer, class Options>
std::vector<torch::Tensor> resumed(bool first_sharded, bool then_sharded, Options const& options) {
  auto const folder =
      std::filesystem::temp_directory_path() / text("ddp_libtorch_sharded_", gathered(text(::getpid()))[0]);
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  world().barrier();
  torch::manual_seed(7);
  auto net = on_device(std::make_shared<TwoLayers>());
  for (bool const first : {true, false}) {
    auto const start = first ? net : copy_of(*net);
    if (!first) {
      torch::NoGradGuard const no_graph;
      for (auto& parameter : start->parameters()) parameter.zero_();
    }
    bool const is_sharded = first ? first_sharded : then_sharded;
    Wrapped wrapped(world(), *start, is_sharded ? sharded_options() : small_buckets());
    std::unique_ptr<torch::optim::Optimizer> plain;
    std::optional<Sharded> sharded;
    std::optional<libtorch::Checkpoint> checkpoint;
    if (is_sharded) {
      sharded.emplace(wrapped, maker<Optimizer>(options));
      checkpoint.emplace(world(), folder, *start, *sharded);
    } else {
      plain = std::make_unique<Optimizer>(start->parameters(), options);
      checkpoint.emplace(world(), folder, *start, plain.get());
    }
    auto& inner = is_sharded ? sharded->inner() : *plain;
    if (!first) {
      auto const restored = checkpoint->restore();
      EXPECT_TRUE(restored && restored->position.step == 3);
      EXPECT_EQ(inner.param_groups()[0].options().get_lr(), 0.03);
    }
    for (std::uint64_t step = first ? 0 : 3; step < (first ? 3U : 6U); ++step) {
      start->zero_grad();
      loss_of(start->forward(shard(random_rows(4 * world().size(), 6, step)))).backward();
      is_sharded ? sharded->step() : static_cast<void>(plain->step());
    }
    if (first) {
      inner.param_groups()[0].options().set_lr(0.03);
      checkpoint->save({.step = 3});
      checkpoint->wait();
    }
    net = start;
  }
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  return values_of(*net);
}

TEST(LibtorchShardedOptimizer, R25PlainAndShardedTrainingsReadEachOthersCheckpoints) {
  auto const all = [](auto const& train) {
    auto const expected = train(false, false);
    for (bool const first : {false, true}) {
      for (bool const then : {false, true}) expect_same(train(first, then), expected, text(first, then));
    }
  };
  all([](bool first, bool then) { return resumed<libtorch::AdamW>(first, then, AdamWOptions(0.01)); });
  all([](bool first, bool then) { return resumed<torch::optim::Adam>(first, then, AdamOptions(0.01)); });
  all([](bool first, bool then) {
    return resumed<libtorch::SGD>(first, then, SGDOptions(0.1).momentum(0.9));
  });
}

TEST(LibtorchShardedOptimizer, R25ACheckpointOfParametersThatAreNotRowMajorIsRefused) {
  auto net = on_device(std::make_shared<Mixed>());
  net->images->weight.set_data(net->images->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  Wrapped wrapped(world(), *net, sharded_options());
  Sharded optimizer(wrapped, maker<libtorch::AdamW>(AdamWOptions(0.01)));
  EXPECT_THAT(message_of([&] { libtorch::Checkpoint(world(), "unused", *net, optimizer); }),
              HasSubstr("parameter \"images.weight\" has strides"));
}
#endif

}  // namespace
}  // namespace ddp::testing
