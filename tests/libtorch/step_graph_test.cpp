// R24 with libtorch: replayed steps do what steps without a graph do.
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libtorch/graph/operation_trail.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kSteps = 8;

// Convolutions, batch norm with its buffers.
struct Convolutions : torch::nn::Module {
  torch::nn::Conv2d first = register_module("first", torch::nn::Conv2d(2, 4, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 3));
  torch::Tensor forward(torch::Tensor const& x) {
    return last(torch::relu(norm(first(x.view({-1, 2, 4, 4})))).flatten(1));
  }
};

// Trains with a graph and without, on the same rows.
template <class Net>
class Pair {
 public:
  using Step =
      std::function<torch::Tensor(Net&, Wrapped&, torch::Tensor const& rows)>;  // all but the optimizer

  explicit Pair(Step step, Wrapped::Options const& options = small_buckets(), std::int64_t columns = 6)
      : input(torch::zeros({4, columns}).to(libtorch::device(world()))), step_(std::move(step)) {
    torch::manual_seed(3);
    net = on_device(std::make_shared<Net>());
    plain = copy_of(*net);
    wrapped = std::make_unique<Wrapped>(world(), *net, options);
    wrapped_plain = std::make_unique<Wrapped>(world(), *plain, options);
    optimizer =
        std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    optimizer_plain =
        std::make_unique<torch::optim::SGD>(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    graph = std::make_unique<libtorch::StepGraph>(*wrapped, [this] {
      ++calls;
      loss = step_(*net, *wrapped, input);
      optimizer->step();
    });
  }

  void run(std::uint64_t first = 0) {
    for (std::uint64_t step = first; step < first + kSteps; ++step) {
      auto const rows = random_rows(4, input.size(1), 100 * step + world().rank().index());
      input.copy_(rows);
      graph->run();
      torch::Tensor const expected = step_(*plain, *wrapped_plain, rows);
      optimizer_plain->step();
      expect_near(loss, expected);
      for (std::size_t p = 0; p < net->parameters().size(); ++p) {
        expect_near(net->parameters()[p], plain->parameters()[p]);
      }
      for (std::size_t b = 0; b < net->buffers().size(); ++b) {
        expect_near(net->buffers()[b].to(torch::kFloat), plain->buffers()[b].to(torch::kFloat));
      }
    }
    expect_equal_on_ranks(net->parameters());
    EXPECT_EQ(wrapped->runtime().steps(), first + kSteps);
  }
  void expect_recorded() const {
    EXPECT_EQ(graph->is_recorded(), records_steps()) << graph->why_eager();
    if (!libtorch::device(world()).is_cuda()) {
      EXPECT_THAT(graph->why_eager(), HasSubstr("a CPU has no CUDA graphs"));
    }
  }

  std::shared_ptr<Net> net, plain;
  std::unique_ptr<Wrapped> wrapped, wrapped_plain;
  std::unique_ptr<torch::optim::SGD> optimizer, optimizer_plain;
  std::unique_ptr<libtorch::StepGraph> graph;
  torch::Tensor loss;
  int calls = 0;
  torch::Tensor input;

 private:
  Step step_;
};

template <bool kToNone>
torch::Tensor one_pass(TwoLayers& net, Wrapped& /*wrapped*/, torch::Tensor const& rows) {
  net.zero_grad(kToNone);
  auto const loss = loss_of(net.forward(rows));
  loss.backward();
  return loss;
}

TEST(LibtorchStepGraph, R22R24TrainsAsWithoutAGraphWhereGradientsBecomeUndefined) {
  Pair<TwoLayers> pair(one_pass<true>);
  pair.run();
  pair.expect_recorded();
  EXPECT_EQ(pair.calls, records_steps() ? 4 : static_cast<int>(kSteps));
  pair.graph->record_again();
  pair.run(kSteps);
  pair.expect_recorded();
}

TEST(LibtorchStepGraph, R22R24TrainsAsWithoutAGraphWhereGradientsBecomeZeros) {
  Pair<TwoLayers> pair(one_pass<false>);
  pair.run();
  pair.expect_recorded();
}

TEST(LibtorchStepGraph, R10R24BuffersOfBatchNormTravelInReplays) {
  Pair<Convolutions> pair(
      [](Convolutions& net, Wrapped& /*wrapped*/, torch::Tensor const& rows) {
        net.zero_grad();
        auto const loss = loss_of(net.forward(rows));
        loss.backward();
        return loss;
      },
      small_buckets(), 32);
  pair.run();
  pair.expect_recorded();
  expect_equal_on_ranks(pair.net->buffers());
}

TEST(LibtorchStepGraph, R7R24MicroStepsWithinOneStep) {
  for (bool const to_none : {true, false}) {
    Pair<TwoLayers> pair([to_none](TwoLayers& net, Wrapped& wrapped, torch::Tensor const& rows) {
      net.zero_grad(to_none);
      {
        auto const guard = wrapped.no_sync();
        loss_of(net.forward(rows.slice(0, 0, 2))).backward();
      }
      auto const loss = loss_of(net.forward(rows.slice(0, 2, 4)));
      loss.backward();
      return loss;
    });
    pair.run();
    pair.expect_recorded();
  }
}

// Of which there are one, two or three before each step that sends.
TEST(LibtorchStepGraph, R7R24MicroStepsAreRecordedToo) {
  torch::manual_seed(5);
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  torch::Tensor const input = torch::zeros({4, 6}).to(libtorch::device(world()));
  libtorch::StepGraph micro(wrapped, [&] {
    auto const guard = wrapped.no_sync();
    loss_of(net->forward(input)).backward();
  });
  libtorch::StepGraph send(wrapped, [&] { loss_of(net->forward(input)).backward(); });
  for (std::uint64_t step = 0; step < 2 * kSteps; ++step) {
    net->zero_grad(false);
    whole->zero_grad();
    for (std::uint64_t m = 0; m <= step % 3; ++m) {
      auto const all = random_rows(4 * world().size(), 6, 10 * step + m);
      input.copy_(shard(all));
      m < step % 3 ? micro.run() : send.run();
      loss_of(whole->forward(all)).backward();
    }
    expect_same_gradients(*net, *whole);
  }
  EXPECT_EQ(micro.is_recorded(), records_steps()) << micro.why_eager();
  EXPECT_EQ(send.is_recorded(), records_steps()) << send.why_eager();
  auto const guard = wrapped.no_sync();
  EXPECT_THAT(message_of([&] { send.run(); }), HasSubstr("the guard belongs into the step"));
}

// Their gradients would be overwritten by each replay.
TEST(LibtorchStepGraph, R7R24MicroStepsWhoseGradientsBecomeUndefinedRunWithoutAGraph) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto const rows = random_rows(4, 6, 1);
  libtorch::StepGraph micro(wrapped, [&] {
    auto const guard = wrapped.no_sync();
    loss_of(net->forward(rows)).backward();
  });
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    net->zero_grad(true);
    micro.run();
    loss_of(net->forward(rows)).backward();
  }
  EXPECT_FALSE(micro.is_recorded());
  if (records_steps()) {
    EXPECT_THAT(micro.why_eager(), HasSubstr("use zero_grad(false)"));
  }
}

// Ranks that do not know what the others use could not agree about the optimizer's part.
TEST(LibtorchStepGraph, R6R24AParameterThatOnlyTheRecordedStepUsesMakesAllRunWithoutAGraph) {
  int calls = 0;
  Wrapped const* recorded = nullptr;
  Pair<Branches> pair([&](Branches& net, Wrapped& wrapped, torch::Tensor const& rows) {
    if (&wrapped == recorded) ++calls;
    net.zero_grad();
    auto const loss = loss_of(net.forward(rows, calls == 4 && world().rank() == 0));
    loss.backward();
    return loss;
  });
  recorded = pair.wrapped.get();
  for (int step = 0; step < 8; ++step) pair.graph->run();
  EXPECT_FALSE(pair.graph->is_recorded());
  expect_equal_on_ranks(pair.net->parameters());
  if (records_steps()) {
    EXPECT_THAT(pair.graph->why_eager(), HasSubstr("which no rank used in the step before"));
  }
}

// Only rank 0 uses one branch, and no rank another, whose values must not decay.
TEST(LibtorchStepGraph, R6R24UnusedParameters) {
  Pair<Branches> pair([](Branches& net, Wrapped& /*wrapped*/, torch::Tensor const& rows) {
    net.zero_grad();
    auto const loss = loss_of(net.forward(rows, world().rank() == 0));
    loss.backward();
    return loss;
  });
  pair.run();
  pair.expect_recorded();
  EXPECT_FALSE(pair.net->never->weight.grad().defined());
  EXPECT_TRUE(pair.net->sometimes->weight.grad().defined());
}

TEST(LibtorchStepGraph, R12R24WeightsDifferFromReplayToReplay) {
  Pair<TwoLayers> pair(one_pass<true>);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    auto const rows = random_rows(4, 6, 100 * step + world().rank().index());
    double const weight = static_cast<double>(step * world().rank().index()) + 1;
    pair.input.copy_(rows);
    pair.wrapped->set_weight(weight);
    pair.wrapped_plain->set_weight(weight);
    pair.graph->run();
    static_cast<void>(one_pass<true>(*pair.plain, *pair.wrapped_plain, rows));
    pair.optimizer_plain->step();
    expect_near(pair.net->first->weight, pair.plain->first->weight);
  }
  pair.expect_recorded();
}

TEST(LibtorchStepGraph, R24DropoutDiffersFromReplayToReplay) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto const rows = random_rows(64, 6, 1);
  torch::Tensor kept;
  libtorch::StepGraph graph(wrapped, [&] {
    net->zero_grad();
    auto const hidden = torch::dropout(net->first(rows), 0.5, /*train=*/true);
    kept = hidden != 0;
    loss_of(net->second(hidden)).backward();
  });
  std::vector<std::string> masks;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    graph.run();
    masks.push_back(bytes_of_all({kept.to(torch::kByte)}));
    for (std::size_t before = 0; before + 1 < masks.size(); ++before) EXPECT_NE(masks[before], masks.back());
  }
  EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
  static_cast<void>(torch::dropout(rows, 0.5, /*train=*/true));  // numbers outside of a graph go on
}

// What old graphs keep alive on another stream is in nobody's way.
TEST(LibtorchStepGraph, R24IsRecordedAfterStepsWithoutAGraphWhoseLossStillLives) {
  Pair<TwoLayers> pair(one_pass<true>);
  constexpr std::uint64_t kBefore = 2;
  for (std::uint64_t step = 0; step < kBefore; ++step) {
    auto const rows = random_rows(4, 6, 100 * step + world().rank().index());
    pair.loss = one_pass<true>(*pair.net, *pair.wrapped, rows);
    pair.optimizer->step();
    static_cast<void>(one_pass<true>(*pair.plain, *pair.wrapped_plain, rows));
    pair.optimizer_plain->step();
  }
  pair.run(kBefore);
  pair.expect_recorded();
}

// On one rank `bad` does what a graph cannot hold; then all go on as if nothing had been recorded.
void falls_back(std::function<torch::Tensor(torch::Tensor const& output, bool records_now)> const& bad,
                ::testing::Matcher<std::string const&> const& reason) {
  int const odd = world().size() - 1;
  Wrapped const* recorded = nullptr;
  int calls = 0;
  Pair<TwoLayers> pair([&](TwoLayers& net, Wrapped& wrapped, torch::Tensor const& rows) {
    bool const records_now = &wrapped == recorded && ++calls == 4 && records_steps();
    auto output = torch::dropout(net.forward(rows), 0.0, /*train=*/true);
    if (world().rank() == odd) output = bad(output, records_now);
    auto const loss = loss_of(output);
    loss.backward();
    torch::Tensor const result = loss.detach();
    net.zero_grad(false);  // so what a failed recording leaves in gradients would be added to
    return result;
  });
  recorded = pair.wrapped.get();
  pair.run();
  EXPECT_FALSE(pair.graph->is_recorded());
  EXPECT_EQ(pair.calls, static_cast<int>(kSteps) + (records_steps() ? 1 : 0));
  auto const reasons = gathered(pair.graph->why_eager());
  EXPECT_THAT(reasons, Each(reasons[0]));
  if (!records_steps()) return;
  EXPECT_THAT(reasons[0], AllOf(HasSubstr("rank " + std::to_string(odd) + ": recording failed"), reason));
}

TEST(LibtorchStepGraph, R24AStepThatWaitsForTheGpuRunsWithoutAGraph) {
  falls_back(
      [](torch::Tensor const& output, bool /*records_now*/) {
        EXPECT_FALSE(std::isnan(output.sum().item<float>()));
        return output;
      },
      AllOf(HasSubstr("aten::item: "),
            HasSubstr("a recorded step only enqueues: move what waits for the GPU")));
}

TEST(LibtorchStepGraph, R24AnExceptionInARecordedBackwardPassIsNoFailure) {
  falls_back([](torch::Tensor const& output,
                bool records_now) { return records_now ? Throws::apply(output) : output; },
             AllOf(HasSubstr("Throws"), HasSubstr(": the data of this rank is broken")));
}

TEST(LibtorchStepGraph, R24AnExceptionIsTracedToItsOperation) {
  libtorch::OperationTrail const trail;
  auto const x = torch::ones({3}, torch::requires_grad());
  EXPECT_ANY_THROW(static_cast<void>(x.item()));
  EXPECT_THAT(trail.where(), ::testing::EndsWith("in aten::item: "));
  EXPECT_ANY_THROW(Throws::apply(2 * x).sum().backward());
  EXPECT_THAT(trail.where(), AllOf(HasSubstr("Throws"), Not(HasSubstr("aten::item"))));
  static_cast<void>(2 * x);
  EXPECT_EQ(trail.where(), "");
}

// The module's parameters have no part in it.
TEST(LibtorchStepGraph, R24ANodeOfAnotherStreamIsNamed) {
  auto const scale = torch::ones({3}, torch::requires_grad().device(libtorch::device(world())));
  auto const old = 2 * scale;  // keeps the node that accumulates its gradient, and that one today's stream
  falls_back([&](torch::Tensor const& output, bool /*records_now*/) { return output * scale; },
             HasSubstr("in autograd::engine::evaluate_function: "));
}

TEST(LibtorchStepGraph, R24SyncBatchNormRunsWithoutAGraph) {
  struct Normalised : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 4));
    libtorch::SyncBatchNorm norm = register_module("norm", libtorch::SyncBatchNorm(world(), 4));
    torch::Tensor forward(torch::Tensor const& x) { return norm(first(x)); }
  };
  auto net = on_device(std::make_shared<Normalised>());
  Wrapped wrapped(world(), *net, small_buckets());
  libtorch::StepGraph graph(wrapped, [&] {
    net->zero_grad();
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
  });
  for (std::uint64_t step = 0; step < kSteps; ++step) graph.run();
  EXPECT_FALSE(graph.is_recorded());
  if (records_steps()) {
    EXPECT_THAT(graph.why_eager(), HasSubstr("SyncBatchNorm"));
  }
}

TEST(LibtorchStepGraph, R24BadArgumentsAreRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net);
  EXPECT_THAT(message_of([&] { libtorch::StepGraph(wrapped, {}); }), HasSubstr("expected a function"));
  EXPECT_THAT(message_of([&] { libtorch::StepGraph(wrapped, [] {}, {.warm_up = 0}); }), HasSubstr("found 0"));
  EXPECT_THAT(message_of([&] {
                libtorch::StepGraph(wrapped, [] {},
                                    {.make_graph = [] { return std::shared_ptr<RecordedGraph>(); }});
              }),
              HasSubstr("leave make_graph empty"));
}

}  // namespace
}  // namespace ddp::testing
