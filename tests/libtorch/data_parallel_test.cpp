// Several replicas compute and train as the module alone does on the whole batch.
#include <sstream>

#include "ddp/core/text.hpp"
#include "ddp/parallel/world.hpp"
#include "libtorch/data_parallel_models.hpp"

namespace ddp::testing {
namespace {

class LibtorchDataParallel : public OnEachKind {};
INSTANTIATE_TEST_SUITE_P(Devices, LibtorchDataParallel, ::testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         KindName());

TEST_P(LibtorchDataParallel, P4P8OutputsAndGradientsAreThoseOfTheWholeBatch) {
  for (std::size_t const count : {1, 2, 3, 4}) {
    auto net = make<TwoLayers>();
    DataParallel model(net, replicas(count));
    ASSERT_EQ(model.device_ids().size(), count);
    auto whole = copy_of(net);
    for (std::int64_t const n : {8, 5, 1, 2, 7}) {
      SCOPED_TRACE(text(n, " rows, ", count, " replicas"));
      auto const x = rows(n).requires_grad_();
      auto const y = x.detach().clone().requires_grad_();
      net->zero_grad();
      whole->zero_grad();
      auto const output = model.forward(x);
      expect_near(output, whole->forward(y));
      loss_of(output).backward();
      loss_of(whole->forward(y)).backward();
      expect_same_gradients(*net, *whole);
      expect_near(x.grad(), y.grad());
    }
  }
}

TEST_P(LibtorchDataParallel, P8AnOptimizerTakesTheSameSteps) {
  auto net = make<TwoLayers>();
  auto whole = copy_of(net);
  DataParallel model(net, replicas(3));
  torch::optim::Adam mine(net->parameters(), 0.05);
  torch::optim::Adam theirs(whole->parameters(), 0.05);
  for (int step = 0; step < 5; ++step) {
    auto const x = rows(5 + step);
    mine.zero_grad(step % 2 == 0);
    theirs.zero_grad(step % 2 == 0);
    loss_of(model(x)).backward();
    loss_of(whole->forward(x)).backward();
    mine.step();
    theirs.step();
    for (std::size_t p = 0; p < 4; ++p) expect_near(net->parameters()[p], whole->parameters()[p]);
  }
}

TEST_P(LibtorchDataParallel, P1InputsAndOutputsMayLieOnAnyDeviceAndP4AlongAnyDimension) {
  auto net = make<TwoLayers>();
  auto options = replicas(3);
  options.output_device = Device{};
  options.dim = 1;
  DataParallel model(net, options);
  auto const x = torch::randn({2, 7, 6}, torch::kDouble);  // on the CPU
  auto const output = model(x);
  EXPECT_TRUE(output.device().is_cpu());
  expect_near(output, net->forward(x.to(place())));
}

// One module in two places, and a parameter that nobody trains.
struct TiedAndFrozen : torch::nn::Cloneable<TiedAndFrozen> {
  torch::nn::Linear once{nullptr}, again{nullptr};
  torch::Tensor scale;
  TiedAndFrozen() { reset(); }
  void reset() override {
    once = register_module("once", torch::nn::Linear(6, 6));
    again = register_module("again", once);
    scale = register_parameter("scale", torch::full({6}, 0.5), /*requires_grad=*/false);
  }
  torch::Tensor forward(torch::Tensor const& x) { return again(torch::tanh(once(x * scale))); }
};

TEST_P(LibtorchDataParallel, P8ParametersMayBeTiedFrozenAndUnfrozen) {
  auto net = make<TiedAndFrozen>();
  DataParallel model(net, replicas(3));
  auto const x = rows(7);
  for (bool const frozen : {true, false, true}) {
    net->scale.set_requires_grad(!frozen);
    auto whole = copy_of(net);
    net->zero_grad();
    auto const earlier = model(x);  // its graph outlives replicas that are made again
    net->once->bias.set_requires_grad(frozen);
    whole->once->bias.set_requires_grad(frozen);
    loss_of(earlier).backward();
    net->zero_grad();
    loss_of(model(x)).backward();
    loss_of(whole->forward(x)).backward();
    EXPECT_EQ(net->scale.grad().defined(), !frozen);
    expect_same_gradients(*net, *whole);
  }
  for (auto& parameter : net->parameters()) parameter.set_requires_grad(false);
  EXPECT_FALSE(model(x).requires_grad());
}

// Normalises with the statistics of a replica's part in training, with those it has kept in evaluation.
struct Normalised : torch::nn::Cloneable<Normalised> {
  torch::nn::BatchNorm1d batch{nullptr};
  torch::nn::InstanceNorm1d instance{nullptr};
  Normalised() { reset(); }
  void reset() override {
    batch = register_module("batch", torch::nn::BatchNorm1d(6));
    instance = register_module(
        "instance", torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(6).track_running_stats(true)));
  }
  torch::Tensor forward(torch::Tensor const& x) { return instance(batch(x)).pow(3); }
};

TEST_P(LibtorchDataParallel, P5BuffersOfReplica0AreKeptAndEvaluationHasThemEverywhere) {
  auto net = make<Normalised>();
  auto whole = copy_of(net);
  auto first = copy_of(net);
  DataParallel model(net, replicas(2));
  for (int step = 0; step < 3; ++step) {
    std::vector<torch::Tensor> found;
    std::vector<torch::Tensor> expected;
    net->zero_grad();
    whole->zero_grad();
    for (int pass = 0; pass < 2; ++pass) {  // two passes before backward()
      auto const x = torch::randn({7, 6, 5}, torch::kDouble).to(place());
      found.push_back(model(x));
      auto const parts = x.chunk(2);
      expected.push_back(torch::cat({whole->forward(parts[0]), whole->forward(parts[1])}));
      static_cast<void>(first->forward(parts[0]));
      expect_near(found.back(), expected.back());
    }
    (loss_of(found[0]) + loss_of(found[1])).backward();
    (loss_of(expected[0]) + loss_of(expected[1])).backward();
    expect_same_gradients(*net, *whole);
    for (std::size_t b = 0; b < net->buffers().size(); ++b) {
      expect_near(net->buffers()[b].to(torch::kDouble), first->buffers()[b].to(torch::kDouble));
    }
    net->eval();
    first->eval();
    auto const x = torch::randn({4, 6, 5}, torch::kDouble).to(place());
    expect_near(model(x), first->forward(x));
    net->train();
    first->train();
  }
  net->instance->eval();  // a part of the module alone
  auto const x = torch::randn({4, 6, 5}, torch::kDouble).to(place());
  auto const parts = x.chunk(2);
  auto alone = copy_of(net);
  alone->instance->eval();
  expect_near(model(x), torch::cat({alone->forward(parts[0]), alone->forward(parts[1])}));
}

struct Counting : torch::nn::Cloneable<Counting> {
  torch::Tensor seen;
  Counting() { reset(); }
  void reset() override { seen = register_buffer("seen", torch::zeros({1})); }
  torch::Tensor forward(torch::Tensor const& x) {
    seen.add_(x.sum());
    return x * 0 + seen.clone();
  }
};

TEST_P(LibtorchDataParallel, P5WhatOtherReplicasWriteIsLost) {
  auto net = make<Counting>();
  DataParallel model(net, replicas(2));
  auto const x = torch::tensor({{1.0}, {10.0}}, torch::kDouble).to(place());
  expect_near(model(x), torch::tensor({{1.0}, {10.0}}, torch::kDouble));
  expect_near(model(x), torch::tensor({{2.0}, {11.0}}, torch::kDouble));
  EXPECT_EQ(net->seen.item<double>(), 2);
}

TEST_P(LibtorchDataParallel, P5ValuesAreFollowedHoweverTheyWereWritten) {
  auto net = make<TwoLayers>();
  DataParallel model(net, replicas(3));
  auto const x = rows(5);
  auto const check = [&](torch::Tensor const& input) { expect_near(model(input), net->forward(input)); };
  check(x);
  net->first->weight.data().fill_(0.5);  // past the version counter
  check(x);
  net->first->weight.set_data(torch::randn_like(net->first->weight));  // new memory
  check(x);
  auto other = make<TwoLayers>();
  std::stringstream file;
  torch::save(other, file);
  torch::load(net, file);
  check(x);
  expect_near(model(x), other->forward(x));
  net->to(torch::kFloat);
  EXPECT_EQ(model(x.to(torch::kFloat)).scalar_type(), torch::kFloat);
  net->to(torch::kDouble);
  check(x);
  loss_of(model(x)).backward();
  EXPECT_TRUE(net->first->weight.grad().defined());
}

TEST_P(LibtorchDataParallel, P8TwoPassesBeforeOneBackwardAddUp) {
  auto net = make<TwoLayers>();
  auto whole = copy_of(net);
  DataParallel model(net, replicas(3));
  auto const x = rows(5);
  auto const y = rows(2);
  auto const loss = loss_of(model(x)) + loss_of(model(y));
  loss.backward();
  (loss_of(whole->forward(x)) + loss_of(whole->forward(y))).backward();
  expect_same_gradients(*net, *whole);
}

TEST_P(LibtorchDataParallel, P8HooksAndGradientsOfGradientsSeeTheSum) {
  auto net = make<TwoLayers>();
  auto whole = copy_of(net);
  DataParallel model(net, replicas(3));
  auto const x = rows(5).requires_grad_();
  std::vector<torch::Tensor> hooked;
  net->first->weight.register_hook([&](torch::Tensor const& gradient) { hooked.push_back(gradient); });
  auto const slope_of = [&](auto&& forward, std::vector<torch::Tensor> const& inputs) {
    return torch::autograd::grad({loss_of(forward(x))}, inputs, {}, /*retain_graph=*/true,
                                 /*create_graph=*/true);
  };
  auto const mine = slope_of(model, {x, net->first->weight});
  auto const theirs =
      slope_of([&](auto const& input) { return whole->forward(input); }, {x, whole->first->weight});
  expect_near(mine[0], theirs[0]);
  expect_near(mine[1], theirs[1]);
  hooked.clear();
  (mine[0].pow(2).sum() + mine[1].pow(2).sum()).backward();
  (theirs[0].pow(2).sum() + theirs[1].pow(2).sum()).backward();
  ASSERT_EQ(hooked.size(), 1U);
  expect_near(hooked[0], whole->first->weight.grad());
  expect_same_gradients(*net, *whole);
}

// What a replica does not use has no gradient there. Its tensors are of several types, and large enough to
// travel alone.
struct Choosing : torch::nn::Cloneable<Choosing> {
  torch::nn::Linear wide{nullptr}, other{nullptr};
  torch::Tensor phase;
  Choosing() { reset(); }
  void reset() override {
    wide = register_module("wide", torch::nn::Linear(6, 30000));
    other = register_module("other", torch::nn::Linear(6, 30000));
    phase = register_parameter("phase", torch::randn({4, 6}, torch::kComplexDouble).t());
  }
  torch::Tensor forward(torch::Tensor const& x) {
    auto const turned = torch::abs(x.to(torch::kComplexDouble).matmul(phase)).sum(1, /*keepdim=*/true);
    return (x[0][0].item<double>() < 0 ? wide(x) : other(x)).slice(1, 0, 9) * turned;
  }
};

std::shared_ptr<Choosing> choosing(torch::Device place) {
  auto net = std::make_shared<Choosing>();  // to(torch::kDouble) would make everything real
  net->to(place);
  net->wide->to(torch::kDouble);
  net->other->to(torch::kDouble);
  return net;
}

torch::Tensor second_row_negative() { return torch::tensor({{1.0}, {-1.0}, {1.0}}, torch::kDouble); }

TEST_P(LibtorchDataParallel, P8AParameterMayBeUsedByOneReplicaOnly) {
  auto net = choosing(place());
  auto whole = copy_of(net);
  DataParallel model(net, replicas(3));
  auto const sign = second_row_negative().to(place());
  for (bool const second : {false, true}) {
    auto const x = rows(3).abs() * (second ? sign : sign.abs());
    net->zero_grad();
    whole->zero_grad();
    auto const output = model(x);
    auto const parts = x.chunk(3);
    auto const expected =
        torch::cat({whole->forward(parts[0]), whole->forward(parts[1]), whole->forward(parts[2])});
    expect_near(output, expected);
    loss_of(output).backward();
    loss_of(expected).backward();
    EXPECT_EQ(net->wide->weight.grad().defined(), second);
    EXPECT_TRUE(net->phase.grad().is_complex());
    expect_same_gradients(*net, *whole);
  }
}

// Of a value that only replica 1 has saved.
TEST_P(LibtorchDataParallel, P8AChangeBetweenForwardAndBackwardIsFoundAsWithoutReplicas) {
  auto net = choosing(place());
  DataParallel model(net, replicas(3));
  auto const x = (rows(3).abs() * second_row_negative().to(place())).requires_grad_();
  auto const output = model(x);
  {
    torch::NoGradGuard const no_graph;
    net->wide->weight.mul_(2);
  }
  static_cast<void>(model(x));
  EXPECT_THAT([&] { loss_of(output).backward(); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("modified by an inplace operation")));
}

TEST_P(LibtorchDataParallel, P8AGraphOutlivesWhatMadeIt) {
  auto net = make<TwoLayers>();
  auto whole = copy_of(net);
  auto const x = rows(5);
  auto const loss = loss_of(DataParallel(net, replicas(3))(x));
  loss.backward();
  loss_of(whole->forward(x)).backward();
  expect_same_gradients(*net, *whole);
}

// The averages of one rank are its own gradients: what is shown is that hooks see each parameter once.
TEST_P(LibtorchDataParallel, P8R22DistributedDataParallelOfTheSameModuleHasTheSums) {
  World const world = World::init();
  if (world.device().kind != GetParam()) GTEST_SKIP() << "this rank is on " << world.device();
  auto net = make<TwoLayers>();
  auto whole = copy_of(net);
  libtorch::DistributedDataParallel ranks(world, *net);
  DataParallel model(net, replicas(3));
  for (int step = 0; step < 3; ++step) {
    auto const x = rows(5);
    net->zero_grad(step < 2);
    whole->zero_grad();
    loss_of(model(x)).backward();
    loss_of(whole->forward(x)).backward();
    expect_same_gradients(*net, *whole);
  }
  EXPECT_EQ(ranks.runtime().steps(), 3U);
}

}  // namespace
}  // namespace ddp::testing
