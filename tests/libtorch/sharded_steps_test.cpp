// A sharded optimizer (R25) in steps with weights, that are skipped, or of ranks without data: the numbers of
// the plain wrapper.
#include <cmath>
#include <optional>

#include "ddp/core/text.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using Sharded = libtorch::ShardedOptimizer;
using Options = ddp::DistributedDataParallelOptions;

enum class Steps { weighted, skipped, uneven, uneven_and_skipped };

bool is_spoilt(Steps steps, int step) {
  return (steps == Steps::skipped || steps == Steps::uneven_and_skipped) &&
         (step == 0 || step == 3 || step == 4);
}
// How many this rank has data for, of six; the last rank has data for all.
int own_steps(Steps steps) {
  int const after = world().size() - 1 - world().rank().value();
  return steps == Steps::uneven || steps == Steps::uneven_and_skipped ? std::max(6 - 3 * after, 0) : 6;
}

// Sharded, or without `update` plain.
class AnyAdamW {
 public:
  AnyAdamW(torch::nn::Module const& net, Wrapped& wrapped, std::optional<Sharded::Update> update) {
    auto const make = [](auto of) {
      return std::make_unique<libtorch::AdamW>(of, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    };
    if (update) {
      sharded_.emplace(wrapped, make, Sharded::Groups{}, *update);
    } else {
      plain_ = make(net.parameters());
    }
  }
  void step() { plain_ ? static_cast<void>(plain_->step()) : sharded_->step(); }
  [[nodiscard]] libtorch::FusedOptimizer& inner() {
    return plain_ ? *plain_ : dynamic_cast<libtorch::FusedOptimizer&>(sharded_->inner());
  }

 private:
  std::unique_ptr<libtorch::AdamW> plain_;
  std::optional<Sharded> sharded_;
};

// One rank's trainings in this form, of two epochs. Without `update`, by the plain wrapper.
std::vector<torch::Tensor> train_in(Steps steps, std::optional<Sharded::Update> update, bool narrow,
                                    double clip_norm) {
  torch::manual_seed(5);
  auto net = on_device(std::make_shared<TwoLayers>());
  if (narrow) net->to(torch::kBFloat16);
  Wrapped::Options options = small_buckets();
  options.runtime.rebuild_buckets = false;
  options.runtime.clip_norm = clip_norm;
  if (update) options.runtime.sharding = Sharding::optimizer;
  if (steps != Steps::weighted) options.runtime.uneven = Options::Uneven::divide_by_live;
  if (is_spoilt(steps, 0)) options.runtime.nonfinite = Options::Nonfinite::flag;
  Wrapped wrapped(world(), *net, options);
  AnyAdamW optimizer(*net, wrapped, update);
  if (is_spoilt(steps, 0)) optimizer.inner().skip_where(wrapped.found_nonfinite());
  for (int epoch = 0; epoch < 2; ++epoch) {
    int step = 0;
    auto const end = [&] {
      optimizer.step();
      if (is_spoilt(steps, 0)) {
        EXPECT_EQ(wrapped.found_nonfinite().item<float>(), is_spoilt(steps, step) ? 1.0F : 0.0F)
            << "step " << step;
      }
      ++step;
    };
    while (step < own_steps(steps)) {
      net->zero_grad(step % 2 == 0);
      int const rank = world().rank().value();
      auto rows = random_rows(4, 6, static_cast<std::uint64_t>(100 * epoch + 10 * rank + step));
      bool const is_last = rank == world().size() - 1;
      if (is_spoilt(steps, step) && is_last) rows[1][2] = std::nan("");
      if (steps == Steps::weighted)
        wrapped.set_weight(is_last && rank > 0 && step % 3 == 1 ? 0.0 : 1.5 + rank);
      loss_of(net->forward(rows.to(net->first->weight.scalar_type()))).backward();
      end();
    }
    if (steps != Steps::weighted) wrapped.join(end);
    EXPECT_EQ(step, 6);
    expect_equal_on_ranks(net->parameters());
  }
  return values_of(*net);
}

void expect_as_plain(Steps steps) {
  for (double const clip_norm : {0.0, 0.05}) {
    auto const expected = train_in(steps, std::nullopt, false, clip_norm);
    for (auto const update : {Sharded::Update::in_step, Sharded::Update::in_backward}) {
      SCOPED_TRACE(
          text(update == Sharded::Update::in_step ? "in_step" : "in_backward", ", clip_norm ", clip_norm));
      auto const found = train_in(steps, update, false, clip_norm);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t p = 0; p < found.size(); ++p) expect_near(found[p], expected[p], 1e-6);
    }
    auto const narrow = train_in(steps, Sharded::Update::in_step, true, clip_norm);  // with masters
    for (std::size_t p = 0; p < narrow.size(); ++p)
      expect_near(narrow[p].to(torch::kFloat), expected[p], 5e-2);
  }
}

TEST(LibtorchShardedSteps, R25R4WeightedRanksGiveTheNumbersOfThePlainWrapper) {
  expect_as_plain(Steps::weighted);
}
TEST(LibtorchShardedSteps, R25R17ANaNOfOneRankSkipsTheStepOnAll) { expect_as_plain(Steps::skipped); }
TEST(LibtorchShardedSteps, R25R11RanksWithoutDataGiveTheNumbersOfThePlainWrapper) {
  expect_as_plain(Steps::uneven);
}
TEST(LibtorchShardedSteps, R25R11R17SoDoTheyWhereStepsAreSkipped) {
  expect_as_plain(Steps::uneven_and_skipped);
}

// Of eight steps, by a StepGraph or without one.
std::vector<torch::Tensor> train_repeatedly(std::optional<Sharded::Update> update, bool graph,
                                            torch::Dtype dtype) {
  torch::manual_seed(5);
  auto net = on_device(std::make_shared<TwoLayers>());
  net->to(dtype);
  Wrapped::Options options = small_buckets();
  options.runtime.rebuild_buckets = false;
  if (update) options.runtime.sharding = Sharding::optimizer;
  Wrapped wrapped(world(), *net, options);
  AnyAdamW optimizer(*net, wrapped, update);
  torch::Tensor const input = torch::zeros({4, 6}).to(libtorch::device(world())).to(dtype);
  auto const once = [&] {
    net->zero_grad();
    loss_of(net->forward(input)).backward();
    optimizer.step();
  };
  std::optional<libtorch::StepGraph> recorded;
  if (graph) recorded.emplace(wrapped, once);
  for (std::uint64_t step = 0; step < 8; ++step) {
    input.copy_(random_rows(4, 6, 10 * step + world().rank().index()));
    graph ? static_cast<void>(recorded->run()) : once();
  }
  if (graph) {
    EXPECT_EQ(recorded->is_recorded(), records_steps()) << recorded->why_eager();
  }
  expect_equal_on_ranks(net->parameters());
  return values_of(*net);
}

TEST(LibtorchShardedSteps, R25R24ReplaysGiveTheNumbersOfStepsWithoutAGraph) {
  for (auto const dtype : {torch::kFloat, torch::kBFloat16}) {
    auto const plain = train_repeatedly(std::nullopt, false, dtype);
    for (auto const update : {Sharded::Update::in_step, Sharded::Update::in_backward}) {
      SCOPED_TRACE(text(update == Sharded::Update::in_step ? "in_step " : "in_backward ", toString(dtype)));
      auto const eager = train_repeatedly(update, false, dtype);
      auto const replayed = train_repeatedly(update, true, dtype);
      for (std::size_t p = 0; p < plain.size(); ++p) {
        expect_near(replayed[p].to(torch::kFloat), eager[p].to(torch::kFloat), 1e-6);
        if (dtype == torch::kFloat) expect_near(eager[p], plain[p], 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace ddp::testing
